package redlock_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock"
)

// A panickingHook panics at the next script.
type panickingHook struct {
	redis.Hook
	on atomic.Bool
}

func (h *panickingHook) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h *panickingHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if cmd.Name() == "evalsha" && h.on.CompareAndSwap(true, false) {
			panic("hook")
		}
		return next(ctx, cmd)
	}
}

func (h *panickingHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// The driver calls its nodes in goroutines of its own, where no caller could recover. The node counts as one that did not
// answer.
func TestPanicOfAHook(t *testing.T) {
	t.Parallel()
	var clients []redis.UniversalClient
	var hooks []*panickingHook
	for range 3 {
		c, hook := redis.NewClient(&redis.Options{Addr: testenv.Redis(t).Addr(), ContextTimeoutEnabled: true}), &panickingHook{}
		t.Cleanup(func() { _ = c.Close() })
		c.AddHook(hook)
		clients, hooks = append(clients, c), append(hooks, hook)
	}
	c := locksOn(t, clients, dlock.Config{DefaultTTL: time.Minute}, patient)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	arm := func() {
		for _, h := range hooks {
			h.on.Store(true)
		}
	}
	arm()
	g := acquire(t, c, "k")
	arm()
	if err := g.Extend(ctx, 2*time.Minute); err != nil {
		t.Errorf("extending it: %v", err)
	}
	for i, h := range hooks {
		if h.on.Load() {
			t.Errorf("hook %d has not panicked", i)
		}
	}
	unlock(t, g)
}
