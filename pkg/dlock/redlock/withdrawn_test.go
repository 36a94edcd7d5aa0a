package redlock_test

import (
	"context"
	"testing"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock"
)

// A claim that no server was sent needs no clean-up: no tombstones, and nothing that Close
// would wait for.
func TestWithdrawnClaimLeavesNothing(t *testing.T) {
	t.Parallel()
	s := start(t, 3)
	c := s.locks(t, dlock.Config{})
	for _, p := range s.proxies {
		p.BlackHole(true) // so HELLO is not answered, and nothing comes after it
	}
	for range 10 {
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
		_, err := c.TryLock(ctx, "k")
		cancel()
		want(t, err, dlock.ErrUnavailable)
	}
	s.heal()
	warm(t, c)
	check(t, c.Close()) // after the last clean-up
	for _, d := range s.direct {
		keys, err := d.Keys(t.Context(), "{k}*").Result()
		check(t, err)
		if len(keys) > 0 {
			t.Errorf("%d keys are left of claims that were not sent, such as %q", len(keys), keys[0])
		}
	}
}

// A waiter whose call fails because most servers refuse is not shown any more where it was.
func TestRefusedWaiterIsNotShown(t *testing.T) {
	t.Parallel()
	s := start(t, 3)
	c := s.locks(t, dlock.Config{})
	warm(t, c)
	check(t, s.direct[0].Set(t.Context(), "k", "another", 0).Err())
	for _, p := range s.proxies[1:] {
		p.Refuse(true)
		p.Cut()
	}
	_, err := c.Acquire(t.Context(), "k", dlock.WithWait(500*time.Millisecond), dlock.WithTTL(time.Minute))
	if err == nil {
		t.Fatal("acquired without a majority")
	}
	soon(t, "the waiter is removed", func() bool {
		keys, err := s.direct[0].Keys(t.Context(), "{k}*w").Result()
		check(t, err)
		return len(keys) == 0
	})
}
