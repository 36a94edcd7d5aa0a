package redlock_test

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/ceyewan/genesis/internal/faultproxy"
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
	evictToken(tb, admin, key, claims[0].Token)
	closeLocks(tb, c) // so that no call is under way to a node that a majority did not need, unless the machine stalls
}

// evictToken evicts a claim, again if the machine stalled and the call was not answered. Only after such a call there may be
// nothing left to evict.
func evictToken(tb testing.TB, admin *dlock.Admin, key string, token int64) {
	tb.Helper()
	for repeats := false; ; repeats = true {
		began := time.Now()
		err := admin.Evict(tb.Context(), key, token)
		if repeats && errors.Is(err, dlock.ErrLockNotHeld) {
			return
		}
		if !hazardtest.GaveUp(tb, err, began) {
			check(tb, err)
			return
		}
	}
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

// An eviction reaches one node late: by then the evicted claim is gone from there, and another claim has the lock. That one
// keeps it on all nodes, whether it is of the same Client or of another.
func TestLateEvictionSparesTheNextHolder(t *testing.T) {
	t.Parallel()
	for name, isOther := range map[string]bool{"of another Client": true, "of the same Client": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := start(t, 3)
			c := s.locks(t, dlock.Config{})
			next := c
			if isOther {
				next = s.locks(t, dlock.Config{})
			}
			warm(t, c)
			s.loaded(t, "release", 3)
			old := acquire(t, c, "k", dlock.WithTTL(time.Hour), dlock.WithoutRenewal())
			s.confirms(t)
			land := s.evictLate(t, old)
			began := time.Now()
			err := old.Unlock(t.Context()) // removes the claim from the last node
			if !hazardtest.GaveUp(t, err, began) {
				want(t, err, dlock.ErrOwnershipLost)
			}
			soon(t, "no node has the evicted claim", func() bool { return s.holders(t, "k") == 0 })
			g := acquire(t, next, "k", dlock.WithTTL(time.Hour), dlock.WithoutRenewal())
			soon(t, "all nodes have the next claim", func() bool { return s.agree(t, "k", g.Token()) })
			land()
			if !s.agree(t, "k", g.Token()) {
				t.Errorf("a node does not have the lock with the token %d any more", g.Token())
			}
			third, _ := s.locks(t, dlock.Config{}).TryAcquire(t.Context(), "k")
			if third != nil {
				t.Error("a third Client has the lock as well")
			}
			check(t, g.Extend(t.Context(), time.Hour))
			unlock(t, g)
		})
	}
}

// evictLate evicts a holder, and keeps the call from the last node until land is called. That returns once the node has
// carried it out.
func (s *set) evictLate(t *testing.T, g *dlock.Guard) (land func()) {
	t.Helper()
	admin, err := s.locks(t, dlock.Config{}).Admin()
	check(t, err)
	token := strconv.FormatInt(g.Token(), 10)
	gate, held := make(chan struct{}), make(chan struct{})
	open, hold := sync.OnceFunc(func() { close(gate) }), sync.OnceFunc(func() { close(held) })
	t.Cleanup(open)
	s.proxies[2].DeliverAfterClose(true) // the call lands even if the operator no longer waits for it
	s.proxies[2].Intercept(func(cmd []string) faultproxy.Action {
		if calls(cmd, "release", g.Key()) && slices.Contains(cmd, token) { // a release by the holder names no token
			hold()
			<-gate
		}
		return faultproxy.Forward
	})
	evictToken(t, admin, g.Key(), g.Token())
	select {
	case <-held:
	case <-time.After(patience):
		t.Fatal("the eviction is not sent to the last node")
	}
	s.logCommands(t)
	return func() {
		open()
		testenv.Eventually(t, patience, "the late eviction arrives", func() bool { return s.hasRun(t, 2, "release", token) })
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
