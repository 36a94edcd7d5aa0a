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

// A panickingHook panics at the next command of a name.
type panickingHook struct {
	redis.Hook
	on       atomic.Bool
	command  atomic.Value // evalsha, if there is none
	panicked atomic.Int64
}

// mayPanic panics if a command is the one.
func (h *panickingHook) mayPanic(cmd redis.Cmder) {
	name, ok := h.command.Load().(string)
	if !ok {
		name = "evalsha"
	}
	if cmd.Name() == name && h.on.CompareAndSwap(true, false) {
		h.panicked.Add(1)
		panic("hook")
	}
}

func (h *panickingHook) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h *panickingHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		h.mayPanic(cmd)
		return next(ctx, cmd)
	}
}

func (h *panickingHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		for _, cmd := range cmds {
			h.mayPanic(cmd)
		}
		return next(ctx, cmds)
	}
}

// The driver calls its nodes in goroutines of its own, where no caller could recover. The node counts as one that did not
// answer.
func TestPanicOfAHook(t *testing.T) {
	t.Parallel()
	clients, hooks := hooked(t)
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

// hooked returns clients of three servers, each with a hook.
func hooked(t *testing.T) (clients []redis.UniversalClient, hooks []*panickingHook) {
	t.Helper()
	for range 3 {
		c, hook := redis.NewClient(&redis.Options{Addr: testenv.Redis(t).Addr(), ContextTimeoutEnabled: true}), &panickingHook{}
		t.Cleanup(func() { _ = c.Close() })
		c.AddHook(hook)
		clients, hooks = append(clients, c), append(hooks, hook)
	}
	return clients, hooks
}

// The same in what the driver does in the background, and for an operator.
func TestPanicOfAHookInTheBackground(t *testing.T) {
	t.Parallel()
	for name, command := range map[string]string{"a removal": "evalsha", "a list": "scan", "owners": "getrange", "a connection": "hello"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			clients, hooks := hooked(t)
			c := locksOn(t, clients, dlock.Config{DefaultTTL: time.Minute}, patient)
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			g := acquire(t, c, "k")
			for _, h := range hooks {
				h.command.Store(command)
				h.on.Store(true)
			}
			panicked := func() (sum int64) {
				for _, h := range hooks {
					sum += h.panicked.Load()
				}
				return sum
			}
			waiting, withdraw := context.WithCancel(ctx)
			defer withdraw()
			waits := make(chan error, 1)
			go func() { // subscribes, and is withdrawn
				_, err := locksOn(t, clients, dlock.Config{}, patient).Acquire(waiting, "k")
				waits <- err
			}()
			if command == "hello" { // nothing but a subscription needs new connections
				testenv.Eventually(t, patience, "it subscribes", func() bool { return panicked() >= 2 })
			} else {
				elapse(100 * time.Millisecond)
			}
			withdraw()
			if err := <-waits; err == nil {
				t.Error("two have the lock")
			}
			admin, err := c.Admin()
			check(t, err)
			testenv.Eventually(t, patience, "the hooks panic", func() bool {
				_, _, _ = admin.ListPage(ctx, "", "", 10) // may fail: no majority answers
				if _, err := c.TryAcquire(ctx, "k"); err == nil {
					t.Error("two have the lock")
				}
				return panicked() >= 2 // a list needs no more nodes
			})
			for _, h := range hooks {
				h.on.Store(false)
			}
			if keys, _, err := admin.ListPage(ctx, "", "", 10); err != nil || len(keys) != 1 {
				t.Errorf("listed %q, %v", keys, err)
			}
			unlock(t, g)
		})
	}
}
