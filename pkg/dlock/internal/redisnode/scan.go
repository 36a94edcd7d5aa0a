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
// returns the keys of this library's locks that it found, in order, and the next cursor. isMode reports
// whether the last member of a sorted set is that of a lock; it is nil if no lock is a sorted set.
func Scan(ctx context.Context, node redis.Cmdable, prefix string, at uint64, wanted int, isMode func(redis.Z) bool) ([]string, uint64, error) {
	step, pattern := int64(min(max(wanted, minStep), maxStep)), escapeGlob(prefix)+"*"
	scan := func() *redis.ScanCmd { return node.ScanType(ctx, at, pattern, step, "string") }
	if isMode != nil {
		scan = func() *redis.ScanCmd { return node.Scan(ctx, at, pattern, step) }
	}
	found, next, err := scan().Result()
	if err != nil || len(found) == 0 {
		return nil, next, err
	}
	found = slices.DeleteFunc(found, func(k string) bool { return strings.Contains(k, Separator) })
	keys, others, err := ofLocks(ctx, node, found)
	if isMode != nil && len(others) > 0 && err == nil {
		var more []string
		more, err = ofJointLocks(ctx, node, others, isMode)
		keys = append(keys, more...)
	}
	if err != nil && len(keys) == 0 {
		return nil, next, err
	}
	slices.Sort(keys)
	return keys, next, nil
}

// ofLocks returns the keys whose values begin as those of locks do, and those that are not strings.
func ofLocks(ctx context.Context, node redis.Cmdable, found []string) (keys, others []string, err error) {
	values, _ := node.Pipelined(ctx, func(p redis.Pipeliner) error {
		for _, k := range found {
			p.GetRange(ctx, k, 0, 63)
		}
		return nil
	})
	for i, v := range values {
		s, _ := v.(*redis.StringCmd)
		switch {
		case s == nil:
		case s.Err() == nil && IsOurs(s.Val()):
			keys = append(keys, found[i])
		case s.Err() != nil && strings.HasPrefix(s.Err().Error(), "WRONGTYPE"):
			others = append(others, found[i])
		case s.Err() != nil:
			err = s.Err()
		}
	}
	return keys, others, err
}

// ofJointLocks returns the keys of locks that readers or permits hold.
func ofJointLocks(ctx context.Context, node redis.Cmdable, found []string, isMode func(redis.Z) bool) (keys []string, err error) {
	values, _ := node.Pipelined(ctx, func(p redis.Pipeliner) error {
		for _, k := range found {
			p.ZRangeWithScores(ctx, k, -1, -1)
		}
		return nil
	})
	for i, v := range values {
		last, _ := v.(*redis.ZSliceCmd)
		switch {
		case last == nil:
		case last.Err() == nil && len(last.Val()) == 1 && isMode(last.Val()[0]):
			keys = append(keys, found[i])
		case last.Err() != nil && !strings.HasPrefix(last.Err().Error(), "WRONGTYPE"):
			err = last.Err()
		}
	}
	return keys, err
}

func escapeGlob(s string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`, `]`, `\]`).Replace(s)
}
