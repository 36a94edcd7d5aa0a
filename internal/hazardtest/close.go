package hazardtest

import (
	"context"
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
	var refused, took atomic.Int64
	for round := range s.rounds(60, 100, 1000) {
		c, err := dlock.New(&dlock.Config{}, dlock.WithBackend(backend))
		check(t, err)
		var wg sync.WaitGroup
		before := took.Load()
		for i := range 6 {
			wg.Go(func() {
				for {
					_, err := c.Acquire(t.Context(), fmt.Sprintf("k%d", i%2)) // the first to hold it keeps it
					if err == nil {
						took.Add(1)
						continue
					}
					expect(t, err, dlock.ErrClosed)
					refused.Add(1)
					return
				}
			})
		}
		if round%4 == 0 { // however slow the machine is, some hold by then
			testenv.Eventually(t, patience, "a lock is held", func() bool { return took.Load() > before })
		}
		elapse(time.Duration(rng.IntN(longest)) * time.Microsecond)
		s.closeWithin(c, nil)
		wg.Wait()
		expect(t, c.Lock(t.Context(), "k0"), dlock.ErrClosed)
		s.nothingLeft(0)
	}
	if took.Load() == 0 || refused.Load() == 0 {
		t.Errorf("%d acquired, %d refused: the scenario does not bite", took.Load(), refused.Load())
	}
}

// CloseOnADeadLink closes when the servers do not answer: that takes no longer than three
// seconds, and says what is left; even if a subscription does not stand yet.
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
