package hazardtest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock"
)

// CloseReleasesEverything closes at any moment: every call ends, with ErrClosed if it was too
// late, and nothing is left.
func CloseReleasesEverything(t *testing.T, open Open) {
	t.Parallel()
	s := begin(t, open)
	backend, longest := s.Direct(t), 6000 // µs
	if s.Traits().Slow {
		longest = 15_000
	}
	rng := rand.New(rand.NewPCG(8, 8))
	var refused, acquired atomic.Int64
	confirmed := 0
	for round := range s.rounds(60, 100, 1000) {
		c, err := dlock.New(&dlock.Config{}, dlock.WithBackend(backend))
		check(t, err)
		var wg sync.WaitGroup
		before := acquired.Load()
		for i := range 6 {
			wg.Go(func() {
				for {
					_, err := c.Acquire(t.Context(), fmt.Sprintf("k%d", i%2)) // the first to hold it keeps it
					if err == nil {
						acquired.Add(1)
						continue
					}
					expect(t, err, dlock.ErrClosed)
					refused.Add(1)
					return
				}
			})
		}
		if round%4 == 0 { // however slow the machine is, some hold by then
			testenv.Eventually(t, patience, "a lock is held", func() bool { return acquired.Load() > before })
		}
		elapse(time.Duration(rng.IntN(longest)) * time.Microsecond)
		gaveUp := s.closeWithin(c, nil)
		wg.Wait()
		expect(t, c.Lock(t.Context(), "k0"), dlock.ErrClosed)
		if gaveUp {
			s.nothingLeft(patience) // when the leases end
		} else {
			confirmed++
		}
		s.nothingLeft(0)
	}
	if acquired.Load() == 0 || refused.Load() == 0 {
		t.Errorf("%d acquired, %d refused: the scenario does not bite", acquired.Load(), refused.Load())
	}
	if confirmed == 0 {
		t.Error("no Close was confirmed: this machine is too slow")
	}
	s.closeWhileHeld()
}

// closeWhileHeld holds the releases of Close up: the contexts end all the same, while the
// servers still have the locks.
func (s *scene) closeWhileHeld() {
	t := s.t
	s.untilShown(testenv.UnderStress(3, 50), func(int) (confirmed bool) {
		c := s.proxied(dlock.Config{DefaultTTL: time.Minute})
		warm(t, c)
		guards := []*dlock.Guard{acquire(t, c, "held0"), acquire(t, c, "held1")}
		for _, g := range guards { // all servers agree, so that asking below takes no time of Close
			testenv.Eventually(t, patience, "the lock is stored", func() bool { return s.token(g.Key()) == g.Token() })
		}
		held, land := s.Hold(Release, 1000)
		closed, started := make(chan error, 1), time.Now()
		go func() { closed <- c.Close() }()
		for _, g := range guards {
			select {
			case <-g.Done():
			case <-time.After(patience):
				t.Fatal("the context of a holder outlives Close")
			}
			expect(t, context.Cause(g.Context()), dlock.ErrClosed)
		}
		for _, g := range guards {
			if s.token(g.Key()) != g.Token() {
				t.Errorf("%q was released before its context ended", g.Key())
			}
		}
		testenv.Eventually(t, patience, "the releases are under way", func() bool { return held.Least() > 0 })
		late := isLate(started, giveUpAfter)
		land()
		err := returned(t, "Close", closed)
		gaveUp := errors.Is(err, dlock.ErrUnknownOutcome) && late
		if err != nil && !gaveUp && !GaveUp(t, err, started) {
			t.Fatalf("close: %v", err)
		}
		s.Heal()
		s.nothingLeft(s.Traits().Healed)
		return err == nil
	})
}

// CloseOnADeadLink closes when the servers do not answer: that takes no longer than three
// seconds, and says what is left; even if a subscription is not established yet.
func CloseOnADeadLink(t *testing.T, open Open) {
	t.Parallel()
	for name, subscribed := range map[string]bool{"Subscribed": true, "Subscribing": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := begin(t, open)
			foreign := acquire(t, s.direct(dlock.Config{DefaultTTL: time.Minute}), "foreign")
			c := s.proxied(dlock.Config{DefaultTTL: time.Minute})
			warm(t, c)
			g := acquire(t, c, "k")
			asked := func() bool { return s.Subscriptions(t) >= s.Traits().Watches }
			if !subscribed {
				asked = s.StallSubscriptions()
			}
			own, other := s.wait(c, "k"), s.wait(c, "foreign")
			testenv.Eventually(t, patience, "it listens", asked)
			s.BlackHole(true)
			s.closeWithin(c, dlock.ErrUnknownOutcome)
			expect(t, (<-own).err, dlock.ErrClosed)
			expect(t, (<-other).err, dlock.ErrClosed)
			expect(t, context.Cause(g.Context()), dlock.ErrClosed)
			if s.token("k") != g.Token() {
				t.Error("the release came through: the fault did not happen")
			}
			unlock(t, foreign)
		})
	}
}
