package dlock_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/memlock"
)

// withBadReleaseHook is a driver whose first Release panics, like that of a client with a bad hook.
func withBadReleaseHook(op string, store *memlock.Store) *scripted {
	s := &scripted{Opener: store, remote: true}
	var calls atomic.Int64
	s.release = func(ctx context.Context, d driver.Driver, r driver.Ref) (driver.State, error) {
		first := calls.Add(1) == 1
		if op == "before" && first {
			panic("hook")
		}
		st, err := d.Release(ctx, r)
		if op == "after" && first {
			panic("hook")
		}
		return st, err
	}
	return s
}

// An Unlock in which a hook of the backend's client panics leaves nothing behind, at the backend or
// here, and the next goroutine gets the lock.
func TestPanicOfUnlockLeavesNothing(t *testing.T) {
	for _, op := range []string{"before", "after"} {
		for name, batch := range map[string]int{"alone": 0, "with local waiters": 1} {
			t.Run(op+" "+name, func(t *testing.T) {
				virtual(t, func(t *testing.T) {
					store := memlock.New()
					c := client(t, withBadReleaseHook(op, store), dlock.Config{LocalBatch: batch, DefaultTTL: time.Hour})
					g := acquire(t, c, "k")
					if err := g.Extend(ctx, 2*time.Hour); err != nil { // so that it is not handed over
						t.Fatal(err)
					}
					served := make(chan error, 1)
					go func() {
						g, err := c.Acquire(ctx, "k")
						if err == nil {
							err = g.Unlock(ctx)
						}
						served <- err
					}()
					elapse(time.Second)
					func() {
						defer func() {
							if recover() == nil {
								t.Error("the panic did not pass")
							}
						}()
						_ = g.Unlock(ctx)
					}()
					select {
					case err := <-served:
						if err != nil {
							t.Error(err)
						}
					case <-time.After(time.Minute):
						t.Error("the next goroutine is not served")
					}
					free(t, client(t, store, dlock.Config{}), "k")
					if n := c.Entries(); n != 0 {
						t.Errorf("%d entries are left", n)
					}
					if err := c.Close(); err != nil {
						t.Error(err)
					}
				})
			})
		}
	}
}
