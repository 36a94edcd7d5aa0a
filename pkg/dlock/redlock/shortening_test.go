package redlock_test

import (
	"context"
	"testing"
	"time"

	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock"
)

// A shorter Extend that has no answer is followed by a longer one that has: the lock is held by all nodes, and is not lost.
func TestLongerExtendAfterAShorterOneWithoutAnAnswer(t *testing.T) {
	t.Parallel()
	s := start(t, 3)
	c := s.locks(t, dlock.Config{})
	warm(t, c)
	g := acquire(t, c, "k", dlock.WithTTL(time.Hour))
	testenv.Eventually(t, patience, "all have the lock", func() bool { return s.isOnAll(t, "k") })
	for _, p := range s.proxies[1:] {
		p.BlackHoleDown(true)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	extended := make(chan error, 1)
	go func() { extended <- g.Extend(ctx, time.Minute) }()
	for _, d := range s.direct[1:] {
		testenv.Eventually(t, patience, "a node has the shorter lease", func() bool {
			left, err := d.PTTL(t.Context(), "k").Result()
			return err == nil && left > 0 && left <= time.Minute
		})
	}
	cancel()
	want(t, <-extended, dlock.ErrUnknownOutcome)
	for _, p := range s.proxies[1:] {
		p.Cut() // before the answers that were kept back could arrive
		p.BlackHoleDown(false)
	}
	check(t, g.Extend(t.Context(), time.Hour))
	check(t, g.Err())
	if left := g.Remaining(); left < 30*time.Second || left > time.Minute {
		t.Errorf("%v left, want a minute less its margin", left)
	}
	unlock(t, g)
}

// One server of three is down, or answers later than the others. What it has not answered cannot shorten the lease that
// the others have confirmed.
func TestExtendsBesideAServerThatDoesNotAnswer(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]func(*set){
		"refuses":     func(s *set) { s.proxies[2].Refuse(true); s.proxies[2].Cut() },
		"answers not": func(s *set) { s.proxies[2].BlackHoleDown(true) },
		"is slow":     func(s *set) { s.proxies[2].Delay(30*time.Millisecond, 0) },
	} {
		for renewal, options := range map[string][]dlock.LockOption{"renewed": nil, "not renewed": {dlock.WithoutRenewal()}} {
			t.Run(name+", "+renewal, func(t *testing.T) {
				t.Parallel()
				s := start(t, 3)
				c := s.locks(t, dlock.Config{})
				warm(t, c)
				g := acquire(t, c, "k", append(options, dlock.WithTTL(time.Hour))...)
				testenv.Eventually(t, patience, "all have the lock", func() bool { return s.isOnAll(t, "k") })
				fault(s)
				check(t, g.Extend(t.Context(), time.Minute))
				check(t, g.Extend(t.Context(), time.Hour))
				if left := g.Remaining(); left < 30*time.Minute {
					t.Errorf("%v left of an hour that two servers have confirmed", left)
				}
				unlock(t, g)
			})
		}
	}
}
