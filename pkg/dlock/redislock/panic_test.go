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

// A panickingHook panics in the goroutine that sends a script.
type panickingHook struct {
	redis.Hook
	at scriptKind
	on atomic.Bool // for the next one
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
	if kindOf(words) == h.at && h.on.CompareAndSwap(true, false) {
		panic("hook")
	}
}

// A hook of the client panics in calls whose callers recover, as a web server does. Each call frees
// its place among the round trips in flight: other calls are sent as before.
func TestPanicOfAHookKeepsNoPlace(t *testing.T) {
	for name, opts := range map[string][]redislock.Option{"inline": {redislock.AlwaysInline()}, "by another goroutine": nil} {
		t.Run(name, func(t *testing.T) { t.Parallel(); panicsKeepNoPlace(t, opts) })
	}
}

func panicsKeepNoPlace(t *testing.T, opts []redislock.Option) {
	t.Helper()
	rdb := redis.NewClient(&redis.Options{Addr: testenv.Redis(t).Addr(), ContextTimeoutEnabled: true})
	t.Cleanup(func() { _ = rdb.Close() })
	hook := &panickingHook{at: acquiring}
	rdb.AddHook(hook)
	c, err := dlock.New(&dlock.Config{DefaultTTL: 20 * time.Second}, dlock.WithBackend(redislock.New(rdb, opts...)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	panicked := 0
	for range 10 {
		func() {
			defer func() {
				if recover() != nil {
					panicked++
				}
			}()
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			hook.on.Store(true)
			g, err := c.Acquire(ctx, "k") // repeated, if it shared a pipeline with a cleanup
			if err != nil {
				t.Fatal(err)
			}
			unlock(t, g)
		}()
	}
	if panicked == 0 {
		t.Errorf("%d of 10 calls have panicked", panicked)
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

// A renewal has no caller who could recover. It is repeated.
func TestPanicOfAHookInARenewal(t *testing.T) {
	t.Parallel()
	rdb := redis.NewClient(&redis.Options{Addr: testenv.Redis(t).Addr(), ContextTimeoutEnabled: true})
	t.Cleanup(func() { _ = rdb.Close() })
	hook := &panickingHook{at: renewingHeld}
	rdb.AddHook(hook)
	c, err := dlock.New(&dlock.Config{DefaultTTL: time.Minute}, dlock.WithBackend(redislock.New(rdb)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	g, err := c.Acquire(ctx, "k")
	if err != nil {
		t.Fatal(err)
	}
	hook.on.Store(true)
	if err := g.Extend(ctx, 2*time.Minute); err != nil || hook.on.Load() {
		t.Errorf("extending it: %v; the hook has not panicked: %v", err, hook.on.Load())
	}
	unlock(t, g)
}
