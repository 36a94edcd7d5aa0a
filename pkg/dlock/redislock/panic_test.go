package redislock_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/redislock"
)

// A panickingHook panics in the goroutine that submits a claim.
type panickingHook struct {
	redis.Hook
	on atomic.Bool // for the next claim
}

func (h *panickingHook) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h *panickingHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		h.see(cmd)
		return next(ctx, cmd)
	}
}

func (h *panickingHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		for _, cmd := range cmds {
			h.see(cmd)
		}
		return next(ctx, cmds)
	}
}

func (h *panickingHook) see(cmd redis.Cmder) {
	var words []string
	for _, arg := range cmd.Args() {
		words = append(words, fmt.Sprint(arg))
	}
	if kindOf(words) == acquiring && h.on.CompareAndSwap(true, false) {
		panic("hook")
	}
}

// A hook of the client panics in calls whose callers recover, as a web server does. Each call frees
// its place among the round trips in flight: other calls are sent as before.
func TestPanicOfAHookKeepsNoPlace(t *testing.T) {
	t.Parallel()
	rdb := redis.NewClient(&redis.Options{Addr: testenv.Redis(t).Addr(), ContextTimeoutEnabled: true})
	t.Cleanup(func() { _ = rdb.Close() })
	hook := &panickingHook{}
	rdb.AddHook(hook)
	c, err := dlock.New(&dlock.Config{DefaultTTL: 20 * time.Second}, dlock.WithBackend(redislock.New(rdb, redislock.AlwaysInline())))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	for i := range 10 {
		func() {
			defer func() {
				if recover() == nil {
					t.Error("the panic was swallowed")
				}
			}()
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			defer cancel()
			hook.on.Store(true)
			_, err := c.Acquire(ctx, "k")
			t.Errorf("call %d: %v", i, err)
		}()
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	g, err := c.Acquire(ctx, "k")
	if err != nil {
		t.Fatal(err)
	}
	if err := g.Unlock(ctx); err != nil {
		t.Error(err)
	}
}
