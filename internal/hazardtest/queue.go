package hazardtest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/ceyewan/genesis/internal/measure"
	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// DeadWaitersAreSkipped puts ten dead waiters at the head of the queue: they cost one heartbeat
// or lease, and not one each, whether their process is gone or only stopped, so that it still
// seems to listen.
func DeadWaitersAreSkipped(t *testing.T, open Open) {
	t.Parallel()
	for name, sig := range map[string]syscall.Signal{"Killed": syscall.SIGKILL, "Stopped": stopSignal} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := &scene{t: t} // each trial has its own servers
			s.untilShown(testenv.UnderStress(1, 20), func(int) bool { return begin(t, open).skipDeadWaiters(sig) })
		})
	}
}

// skipDeadWaiters is one trial of DeadWaitersAreSkipped. It shows nothing if a waiter has lost its place because the machine
// stalled.
func (s *scene) skipDeadWaiters(sig syscall.Signal) (shown bool) {
	t, ttl := s.t, s.Traits().DeadTTL
	metronome, started := testenv.StartMetronome(t), time.Now()
	a, b := s.direct(dlock.Config{}), s.direct(dlock.Config{})
	g := acquire(t, a, "k")
	dying := s.startProcess()
	for range 10 {
		dying.send("wait k %v", ttl)
	}
	s.awaitClaims("k", 11)
	var living []<-chan outcome
	for i := range 10 {
		living = append(living, s.wait(b, "k", dlock.WithTTL(ttl), dlock.WithInfo(dlock.Info{Purpose: fmt.Sprint("living ", i)})))
	}
	var order []string
	for _, c := range s.Claims(t, "k") {
		order = append(order, c.Purpose)
	}
	dying.signal(sig)
	began := time.Now()
	unlock(t, g)
	first, next := s.anyGranted(living)
	took := next.at.Sub(began)
	most := s.Traits().DeadWaiters + metronome.LostBetween(began, next.at)
	inOrder := first == 0 && len(order) == 21 && (slices.Index(order, "living 0") == 11 || !s.Traits().InOrder)
	unlock(t, next.guard)
	for left := slices.Delete(living, first, first+1); len(left) > 0; left = slices.Delete(left, first, first+1) {
		first, next = s.anyGranted(left)
		inOrder = inOrder && (first == 0 || !s.Traits().InOrder)
		unlock(t, next.guard)
	}
	place := driver.Heartbeat(ttl)
	switch {
	case !inOrder && !metronome.MayMiss(started, place, place/3): // a place is renewed after a third of the time that it lasts
		t.Fatalf("the living waiters were not served in order, of %q", order)
	case !inOrder:
		t.Logf("the machine stalled, and the living waiters were not served in order, of %q", order)
		return false
	case took > most:
		t.Errorf("the first living waiter had to wait %v, more than %v", took, most)
	}
	t.Logf("after %v", took)
	return true
}

// anyGranted waits for the end of any of these waits, which must be a grant.
func (s *scene) anyGranted(waiters []<-chan outcome) (which int, got outcome) {
	s.t.Helper()
	testenv.Eventually(s.t, patience, "a waiter is served", func() bool {
		for i, ch := range waiters {
			select {
			case got = <-ch:
				which = i
				return true
			default:
			}
		}
		return false
	})
	check(s.t, got.err)
	return which, got
}

// NoThunderingHerd has 200 waiters: a hand-over wakes one of them, and those of a process share
// a subscription. It measures the CPU, and so does not run in parallel.
func NoThunderingHerd(t *testing.T, open Open) {
	s := begin(t, open)
	const clients, each = 8, 25
	hands := int64(s.rounds(1200, 1500, 5000)) // enough that the requests of 200 waiters that leave at the end do not count
	if s.Traits().Slow {
		hands = min(hands, 1500)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	first := s.direct(dlock.Config{})
	mark := s.idleMark(first, clients*each)
	g := acquire(t, first, "k")
	var wg sync.WaitGroup
	var count atomic.Int64
	for range clients {
		c := s.direct(dlock.Config{})
		for range each {
			wg.Go(func() {
				takeTurns(ctx, t, c, func() {
					if count.Add(1) >= hands {
						cancel()
					}
				})
			})
		}
	}
	s.awaitClaims("k", clients*each+1)
	testenv.Eventually(t, patience, "each process listens once", func() bool { return s.Subscriptions(t) == s.Traits().herd(clients) })
	before, began := s.Requests(t), time.Now()
	idle := idleCPU(t, mark)
	waiting := float64(s.Requests(t)-before) / time.Since(began).Seconds() // the control: what renewals need
	if most := float64(2 * clients * each * s.Traits().Servers); waiting > most {
		t.Errorf("%.0f requests a second while %d wait, more than %.0f", waiting, clients*each, most)
	}
	if n := s.Subscriptions(t); n > s.Traits().herd(clients) {
		t.Errorf("%d processes have %d subscriptions", clients+1, n)
	}
	before, began = s.Requests(t), time.Now()
	unlock(t, g)
	<-ctx.Done()
	requests := float64(s.Requests(t)-before) - waiting*time.Since(began).Seconds()
	perHand := requests / float64(count.Load()) / float64(s.Traits().Servers)
	wg.Wait()
	t.Logf("%.2f requests per hand-over and server, %.1f of %.1f %% of a CPU while %d wait", perHand, 100*idle, 100*mark, clients*each)
	// To wake all would be 200. On a busy machine, calls are repeated, and waiters renew more often between two hand-overs.
	if perHand > testenv.UnderStress(20.0, 10) || count.Load() < hands {
		t.Errorf("%.1f requests per hand-over and server, of %d", perHand, count.Load())
	}
	if idle > mark {
		t.Errorf("%.1f %% of a CPU is used for waiting", 100*idle)
	}
}

// idleMark is how much of a CPU this process may use while so many wait. On a slow machine, what it does anyway and what the
// waiters may ask, once a second each, takes more of it: the control is measured while nothing waits.
func (s *scene) idleMark(c *dlock.Client, waiting int) float64 {
	s.t.Helper()
	const pairs = 50
	warm(s.t, c)
	requests, busy := s.Requests(s.t), measure.CPU()
	for range pairs {
		unlock(s.t, acquire(s.t, c, "k"))
	}
	asking := (measure.CPU() - busy).Seconds() / float64(max(pairs, s.Requests(s.t)-requests))
	alone := usedCPU(500 * time.Millisecond)
	return min(s.Traits().IdleCPU+testenv.UnderStress(alone+float64(waiting)*asking, 0), .8) // a waiter that asks all the time takes one
}

// usedCPU is how much of a CPU this process uses for some time.
func usedCPU(d time.Duration) float64 {
	busy, began := measure.CPU(), time.Now()
	elapse(d)
	return float64(measure.CPU()-busy) / float64(time.Since(began))
}

// herd is how many subscriptions there are while one Client holds a lock and so many others
// wait for it.
func (t Traits) herd(waiting int) int { return waiting + t.HolderWatches }

// takeTurns acquires and unlocks until the context ends.
func takeTurns(ctx context.Context, t *testing.T, c *dlock.Client, turn func()) {
	for ctx.Err() == nil {
		g, err := c.Acquire(ctx, "k")
		if err != nil {
			if ctx.Err() == nil {
				t.Error(err)
			}
			return
		}
		turn()
		release(t, g)
	}
}

// idleCPU is how much of a CPU this process uses. Whatever else it still does, it does not do
// forever: it is measured again where it is too much.
func idleCPU(t *testing.T, mark float64) float64 {
	t.Helper()
	least := 1.0
	for range 3 {
		least = min(least, usedCPU(1500*time.Millisecond))
		if least <= mark {
			break
		}
	}
	return least
}

// WaitersAreServedInOrder lets Clients contend: the waiter that the servers show first in the
// queue is the next to get the lock, strictly.
func WaitersAreServedInOrder(t *testing.T, open Open) {
	t.Parallel()
	s := begin(t, open)
	const clients = 8
	total := int64(s.rounds(300, 1000, 10_000))
	mayMiss := func(looked time.Time) bool { return testenv.Stalled(t, looked, time.Second) } // its heartbeat
	ctx, cancel := context.WithTimeout(t.Context(), 6*time.Minute)
	defer cancel()
	var wg sync.WaitGroup
	var count, predicted, inversions atomic.Int64
	var expected string // guarded by the lock, as is looked
	var looked time.Time
	shares := make([]int64, clients)
	for i := range clients {
		c := s.direct(dlock.Config{})
		wg.Go(func() {
			for n := 0; count.Load() < total; n++ {
				me := fmt.Sprintf("%d.%d", i, n)
				g, err := c.Acquire(ctx, "k", dlock.WithInfo(dlock.Info{Purpose: me}))
				if err != nil {
					t.Error(err)
					return
				}
				count.Add(1)
				shares[i]++
				if expected != "" {
					predicted.Add(1)
					if expected != me && !mayMiss(looked) {
						inversions.Add(1)
					}
				}
				expected, looked = "", time.Now()
				if claims := s.Claims(t, "k"); len(claims) > 1 {
					expected = claims[1].Purpose
				}
				release(t, g)
			}
		})
	}
	wg.Wait()
	if predicted.Load() < total*8/10 {
		t.Errorf("only %d of %d had a predecessor: the scenario does not bite", predicted.Load(), total)
	}
	if inversions.Load() != 0 {
		t.Errorf("%d inversions", inversions.Load())
	}
	if least := slices.Min(shares); least < total/clients/3 {
		t.Errorf("shares %v", shares)
	}
}

// CancelledWaitersLeaveTheQueue ends waits anywhere: they leave nothing in the queue and
// acquire nothing.
func CancelledWaitersLeaveTheQueue(t *testing.T, open Open) {
	t.Parallel()
	s := begin(t, open)
	workers, longest := 25, 40_000 // µs
	healed := s.Traits().Healed
	if s.Traits().Slow {
		workers, longest = 6, 80_000
		healed += testenv.UnderStress(0, 500*time.Millisecond)
	}
	total := int64(s.rounds(400, 1000, 5000))
	var clients []*dlock.Client
	for range 3 { // no lease ends anything here
		clients = append(clients, s.direct(dlock.Config{DefaultTTL: time.Minute}))
	}
	var wg sync.WaitGroup
	var calls, cancelled, acquired atomic.Int64
	for i := range workers {
		rng, c := rand.New(rand.NewPCG(6, uint64(i))), clients[i%len(clients)]
		wg.Go(func() {
			for n := calls.Add(1); n <= total; n = calls.Add(1) {
				within := time.Duration(rng.IntN(longest)) * time.Microsecond
				if n%20 == 0 {
					within = patience // some acquire, however slow the machine is
				}
				ctx, cancel := context.WithTimeout(t.Context(), within)
				g, err := c.Acquire(ctx, "k")
				switch {
				case err == nil:
					acquired.Add(1)
					elapse(time.Duration(rng.IntN(2000)) * time.Microsecond)
					began := time.Now()
					err = g.Unlock(ctx)
					isCut := errors.Is(err, dlock.ErrUnknownOutcome) && within < patience
					if err != nil && !isCut && !GaveUp(t, err, began) {
						t.Error(err)
					}
				case errors.Is(err, context.DeadlineExceeded):
					cancelled.Add(1)
				default:
					t.Error(err)
				}
				cancel()
			}
		})
	}
	wg.Wait()
	s.nothingLeft(healed)
	elapse(200 * time.Millisecond) // nor does anything come back
	s.nothingLeft(0)
	if cancelled.Load() < total/10 || acquired.Load() == 0 {
		t.Errorf("%d cancelled, %d acquired: the scenario does not bite", cancelled.Load(), acquired.Load())
	}
	t.Logf("%d cancelled, %d acquired", cancelled.Load(), acquired.Load())
}
