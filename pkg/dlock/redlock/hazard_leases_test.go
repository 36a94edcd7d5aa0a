package redlock_test

import (
	"testing"
	"time"

	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock"
)

// A lock that has run out on a majority does not come back, though a node has it.
func TestMinorityDoesNotResurrect(t *testing.T) {
	s := start(t, 3)
	c := s.locks(t, dlock.Config{DefaultTTL: time.Minute}, patient) // nothing but Extend renews it
	for range testenv.UnderStress(5, 200) {
		g := acquire(t, c, "k")
		testenv.Eventually(t, patience, "all nodes have it", func() bool { return s.holders(t, "k") == 3 })
		check(t, s.direct[0].Del(t.Context(), "k").Err())
		check(t, s.direct[2].Del(t.Context(), "k").Err())
		want(t, g.Extend(t.Context(), 2*time.Minute), dlock.ErrOwnershipLost)
		if n := s.holders(t, "k"); n > 1 {
			t.Fatalf("%d nodes have it again", n)
		}
		_ = g.Unlock(t.Context()) // cleans up the one that is left
		soon(t, "nothing is left", func() bool { return len(s.left(t)) == 0 })
	}
}

// A minority that lost the lock gets it back from the holder.
func TestMinorityIsFilled(t *testing.T) {
	t.Parallel()
	s := start(t, 5)
	c := s.locks(t, dlock.Config{DefaultTTL: 6 * time.Second}) // which a busy machine can keep
	g := acquire(t, c, "k")
	for range testenv.UnderStress(3, 30) {
		testenv.Eventually(t, patience, "all nodes have it", func() bool { return s.holders(t, "k") == 5 })
		check(t, s.direct[1].Del(t.Context(), "k").Err())
		check(t, s.direct[4].Del(t.Context(), "k").Err())
	}
	testenv.Eventually(t, patience, "all nodes have it", func() bool { return s.holders(t, "k") == 5 })
	for i := range 5 {
		if a, b := s.stored(t, i, "{k}\x01f"), s.stored(t, 0, "{k}\x01f"); a != b {
			t.Errorf("node %d has the token %s, and node 0 %s", i, a, b)
		}
	}
	unlock(t, g)
}
