package redlock_test

import (
	"context"
	"testing"
	"time"

	"github.com/ceyewan/genesis/internal/hazardtest"
	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock"
)

// evict takes a lock away from its holder, as an operator does from another process.
func (s *set) evict(tb testing.TB, key string) {
	tb.Helper()
	c := s.locks(tb, dlock.Config{})
	admin, err := c.Admin()
	check(tb, err)
	claims, err := admin.Inspect(tb.Context(), key)
	check(tb, err)
	if len(claims) == 0 || claims[0].Token == 0 {
		tb.Fatalf("%s is not held: %v", key, claims)
	}
	check(tb, admin.Evict(tb.Context(), key, claims[0].Token))
	check(tb, c.Close()) // so that no call is under way to a node that a majority did not need
}

// A Client whose lock was evicted can acquire it like any other Client, at once and not when the
// old lock would have been renewed or expired. This ends its old Guard.
func TestEvictedClientAsksAgain(t *testing.T) {
	s := start(t, 3)
	c := s.locks(t, dlock.Config{})
	for name, opts := range map[string][]dlock.LockOption{
		"renewed": {dlock.WithTTL(time.Hour)}, "not renewed": {dlock.WithTTL(time.Hour), dlock.WithoutRenewal()},
	} {
		t.Run(name, func(t *testing.T) {
			old := acquire(t, c, name, opts...)
			s.evict(t, name)
			began := time.Now()
			got, err := c.TryAcquire(t.Context(), name, opts...)
			if hazardtest.GaveUp(t, err, began) { // its claim may still be there
				got, err = acquire(t, c, name, opts...), nil
			}
			check(t, err)
			if got.Token() <= old.Token() {
				t.Errorf("token %d after %d", got.Token(), old.Token())
			}
			select {
			case <-old.Done():
			case <-time.After(patience): // the lease is an hour
				t.Error("the evicted Guard still holds")
			}
			s.evict(t, name)
			unlock(t, acquire(t, c, name, opts...))
		})
	}
}

// A goroutine that waits behind another of the same Client is served when that one is evicted.
func TestEvictedByOthersServesOwnWaiter(t *testing.T) {
	s := start(t, 3)
	c := s.locks(t, dlock.Config{})
	for range testenv.UnderStress(5, 50) {
		_ = acquire(t, c, "k", dlock.WithTTL(time.Hour), dlock.WithoutRenewal())
		done := make(chan error, 1)
		go func() {
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			defer cancel()
			g, err := c.Acquire(ctx, "k")
			if err == nil {
				err = tryUnlock(t, g)
			}
			done <- err
		}()
		s.waits(t, "k")
		s.evict(t, "k")
		check(t, <-done)
	}
}

// waits waits until the nodes show a waiter.
func (s *set) waits(tb testing.TB, key string) {
	tb.Helper()
	admin, err := s.locks(tb, dlock.Config{}).Admin()
	check(tb, err)
	testenv.Eventually(tb, patience, "there is a waiter", func() bool {
		claims, err := admin.Inspect(tb.Context(), key)
		check(tb, err)
		return len(claims) > 1
	})
}
