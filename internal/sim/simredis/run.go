package simredis

import (
	"context"
	"slices"

	"github.com/redis/go-redis/v9"
)

// Run runs a script on a real server at a time that the caller chooses, in microseconds.
// What scripts store expires by that time too. It is for tests of single scripts.
func Run(ctx context.Context, c redis.Scripter, micros int64, script string, keys []string, args ...any) *redis.Cmd {
	return c.Eval(ctx, clock+script, keys, slices.Concat(args, []any{micros})...)
}
