package redisnode

import (
	"context"
	"slices"
	"strings"

	"github.com/redis/go-redis/v9"
)

// minStep and maxStep limit the keys that a step examines. The server does nothing else during a
// step, so a caller that asks for many keys gets them in many steps.
const (
	minStep = 100
	maxStep = 1000
)

// Scan does one step on one server, from the cursor at, for a caller that wants so many keys. It
// returns the keys of this library's locks that it found, in order, and the next cursor.
func Scan(ctx context.Context, node redis.Cmdable, prefix string, at uint64, wanted int) ([]string, uint64, error) {
	step := int64(min(max(wanted, minStep), maxStep))
	found, next, err := node.ScanType(ctx, at, escapeGlob(prefix)+"*", step, "string").Result()
	if err != nil || len(found) == 0 {
		return nil, next, err
	}
	found = slices.DeleteFunc(found, func(k string) bool { return strings.Contains(k, Separator) })
	values, err := node.Pipelined(ctx, func(p redis.Pipeliner) error {
		for _, k := range found {
			p.GetRange(ctx, k, 0, 63)
		}
		return nil
	})
	var keys []string
	for i, v := range values {
		s, isString := v.(*redis.StringCmd)
		if isString && s.Err() == nil && IsOurs(s.Val()) {
			keys = append(keys, found[i])
		}
	}
	if err != nil && len(keys) == 0 && len(found) > 0 {
		return nil, next, err
	}
	slices.Sort(keys)
	return keys, next, nil
}

func escapeGlob(s string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`, `]`, `\]`).Replace(s)
}
