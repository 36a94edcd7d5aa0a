// Package dlocktest helps to test code that uses locks, without a server: real Clients on the
// memory backend, and a way to lose a lock on purpose. It also works in the virtual time of
// testing/synctest.
package dlocktest

import (
	"testing"

	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/memlock"
)

// New returns a Client on its own memory store, with Admin allowed. It is closed when the test
// ends.
func New(tb testing.TB) *dlock.Client {
	tb.Helper()
	return NewOn(tb, memlock.New(), &dlock.Config{})
}

// NewOn returns a Client on store. Several Clients on one store stand for several processes on one
// server.
func NewOn(tb testing.TB, store *memlock.Store, cfg *dlock.Config, opts ...dlock.Option) *dlock.Client {
	tb.Helper()
	c, err := dlock.New(cfg, append([]dlock.Option{dlock.WithBackend(store), dlock.WithAdmin()}, opts...)...)
	if err != nil {
		tb.Fatalf("dlocktest: %v", err)
	}
	tb.Cleanup(func() {
		if err := c.Close(); err != nil {
			tb.Errorf("dlocktest: %v", err)
		}
	})
	return c
}

// Lose takes key away from its holder, as an operator's eviction does: the guard's context ends
// with ErrOwnershipLost. If c itself holds key by Lock, Lose returns when c knows; the holder of a
// Guard waits for Guard.Done. Call it once the code under test has the lock, as inside the function of
// Do: a claim that is taken away before its Lock has returned is submitted again.
func Lose(tb testing.TB, c *dlock.Client, key string) {
	tb.Helper()
	admin, err := c.Admin()
	if err != nil {
		tb.Fatalf("dlocktest: %v", err)
	}
	claims, err := admin.Inspect(tb.Context(), key)
	if err != nil || len(claims) == 0 {
		tb.Fatalf("dlocktest: %q is not held (%v)", key, err)
	}
	guard, keyed := c.Held(key)
	if err := admin.Evict(tb.Context(), key, claims[0].Token); err != nil {
		tb.Fatalf("dlocktest: %v", err)
	}
	if keyed {
		<-guard.Done()
	}
}
