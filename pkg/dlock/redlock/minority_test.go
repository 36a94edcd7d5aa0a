package redlock_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock"
)

// confirms waits until all nodes have the same claim under k, with its token. Before that, the round
// that has won may store it once more.
func (s *set) confirms(tb testing.TB) {
	tb.Helper()
	soon(tb, "all nodes have the lock and its token", func() bool {
		id, _, stored := strings.Cut(s.stored(tb, 0, "k"), " ")
		return stored && s.confirmed(tb, id) == len(s.servers)
	})
}

// A majority has lost the lock, and one node still has it: Close removes it there, even if its
// holder has not unlocked it.
func TestCloseReleasesAMinority(t *testing.T) {
	t.Parallel()
	s := start(t, 3)
	for _, unlocks := range []bool{true, false} {
		for !s.closeReleasesAMinority(t, unlocks) {
			s = start(t, 3) // the last node may have the lock until its lease ends
		}
	}
}

// closeReleasesAMinority reports whether it has shown something: a Close that the machine has delayed gives up.
func (s *set) closeReleasesAMinority(t *testing.T, unlocks bool) (shown bool) {
	t.Helper()
	c := s.locks(t, dlock.Config{})
	g := acquire(t, c, "k", dlock.WithTTL(time.Hour))
	s.confirms(t)
	for i := range 2 {
		check(t, s.direct[i].Del(context.Background(), "k").Err())
	}
	want(t, g.Extend(context.Background(), time.Hour), dlock.ErrOwnershipLost) // does not wait for the next renewal
	if unlocks {
		want(t, g.Unlock(context.Background()), dlock.ErrOwnershipLost)
	}
	if closeLocks(t, c) {
		return false
	}
	soon(t, "the last node has nothing", func() bool { return s.stored(t, 2, "k") == "" })
	return true
}

// A majority has lost the lock, and the same Client acquires it again: the last node does not keep
// the claim of the first Guard, which was neither renewed nor unlocked.
func TestNextHolderRemovesAMinority(t *testing.T) {
	s := start(t, 3)
	c := s.locks(t, dlock.Config{})
	_ = acquire(t, c, "k", dlock.WithTTL(2*patience), dlock.WithoutRenewal())
	s.confirms(t)
	old := s.stored(t, 2, "k")
	for i := range 2 {
		check(t, s.direct[i].Del(context.Background(), "k").Err())
	}
	next := acquire(t, c, "k", dlock.WithTTL(2*patience))
	soon(t, "the last node has nothing of the first claim", func() bool { return s.stored(t, 2, "k") != old })
	unlock(t, next)
}

// One server is down while an operator evicts a holder; the eviction succeeds on the two others, and another Client has the
// lock for a while. Then the first server is back, and the second is down. The evicted holder does not get the lock back:
// that a server lacks it does not mean that the holder may store it there.
func TestEvictionIsNotUndone(t *testing.T) {
	t.Parallel()
	s := start(t, 3)
	c, next := s.locks(t, dlock.Config{}), s.locks(t, dlock.Config{})
	warm(t, c)
	warm(t, next)
	g := acquire(t, c, "k", dlock.WithTTL(10*time.Minute))
	s.confirms(t)
	s.proxies[0].Refuse(true)
	s.proxies[0].Cut()
	s.evict(t, "k")
	unlock(t, acquire(t, next, "k", dlock.WithTTL(10*time.Minute)))
	soon(t, "the lock is free on the two others", func() bool { return s.stored(t, 1, "k") == "" && s.stored(t, 2, "k") == "" })
	s.proxies[0].Heal()
	s.proxies[1].Refuse(true)
	s.proxies[1].Cut()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	want(t, g.Extend(ctx, 10*time.Minute), dlock.ErrUnknownOutcome)
	if s.stored(t, 2, "k") != "" {
		t.Error("an evicted claim was stored again")
	}
	s.proxies[1].Heal()
	want(t, g.Extend(t.Context(), 10*time.Minute), dlock.ErrOwnershipLost)
}
