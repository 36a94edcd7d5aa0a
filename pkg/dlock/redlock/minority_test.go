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
	s := start(t, 3)
	for _, unlocks := range []bool{true, false} {
		c := s.locks(t, dlock.Config{})
		g := acquire(t, c, "k", dlock.WithTTL(time.Minute))
		s.confirms(t)
		for i := range 2 {
			check(t, s.direct[i].Del(context.Background(), "k").Err())
		}
		want(t, g.Extend(context.Background(), time.Minute), dlock.ErrOwnershipLost) // does not wait for the next renewal
		if unlocks {
			want(t, g.Unlock(context.Background()), dlock.ErrOwnershipLost)
		}
		check(t, c.Close())
		soon(t, "the last node has nothing", func() bool { return s.stored(t, 2, "k") == "" })
	}
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
