package dlock_test

import (
	"context"
	"testing"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/memlock"
)

// panics reports whether f panics.
func panics(f func()) (panicked bool) {
	defer func() { panicked = recover() != nil }()
	f()
	return false
}

// An Unlock in which a hook of the backend's client panics leaves nothing behind, and the next
// local waiter is served.
func TestUnlockThatPanics(t *testing.T) {
	for _, batch := range []int{0, 1} {
		for _, remote := range []bool{false, true} {
			virtual(t, func(t *testing.T) {
				store, calls := memlock.New(), 0
				release := func(ctx context.Context, d driver.Driver, r driver.Ref) (driver.State, error) {
					calls++
					if calls == 1 {
						panic("hook")
					}
					return d.Release(ctx, r)
				}
				c := client(t, &scripted{Opener: store, remote: remote, release: release}, dlock.Config{LocalBatch: batch})
				g := acquire(t, c, "k")
				if !panics(func() { _ = g.Unlock(ctx) }) {
					t.Error("the panic did not pass")
				}
				elapse(time.Second)
				free(t, client(t, store, dlock.Config{}), "k")
				if n := c.Entries(); n != 0 {
					t.Errorf("LocalBatch %d: %d entries are left", batch, n)
				}
				next, err := c.Acquire(ctx, "k", dlock.WithWait(time.Minute))
				if err != nil {
					t.Fatalf("LocalBatch %d: %v", batch, err)
				}
				unlock(t, next)
			})
		}
	}
}
