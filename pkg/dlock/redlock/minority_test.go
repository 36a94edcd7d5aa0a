package redlock_test

import (
	"context"
	"testing"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock"
)

// A majority has lost the lock, and one node still has it: Close removes it there, even if its
// holder has not unlocked it.
func TestCloseReleasesAMinority(t *testing.T) {
	s := start(t, 3)
	for _, unlocks := range []bool{true, false} {
		c := s.locks(t, dlock.Config{}, patient)
		g := acquire(t, c, "k", dlock.WithTTL(time.Minute))
		soon(t, "all nodes have it", func() bool { return s.holders(t, "k") == 3 })
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
