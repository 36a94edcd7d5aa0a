package dlock_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/faultdriver"
	"github.com/ceyewan/genesis/pkg/dlock/memlock"
)

// A renewal that hangs is tried again before the validity ends, however large the margin is: also the first one, and one of a
// lock that was waited for.
func TestHangingRenewalWithAMargin(t *testing.T) {
	for _, waits := range []bool{false, true} {
		for _, margin := range []time.Duration{0, 3 * second, 5 * second} {
			virtual(t, func(t *testing.T) {
				store, faults := faulty()
				c, other := client(t, faults, dlock.Config{}), client(t, store, dlock.Config{})
				var held *dlock.Guard
				if waits {
					held = acquire(t, other, "k")
				}
				got := async(func() *dlock.Guard { return acquire(t, c, "k", dlock.WithTTL(10*second), dlock.WithMargin(margin)) })
				elapse(500 * time.Millisecond)
				if waits {
					unlock(t, held)
				}
				g := <-got
				elapse(second) // a waiter with a large margin is renewed before it gets the lock
				faults.Add(faultdriver.Rule{Op: faultdriver.Renew, Fault: faultdriver.LoseRequest, Hang: true, Times: 1})
				elapse(9 * second)
				if err := g.Err(); err != nil {
					t.Errorf("waits %v, margin %v: %v", waits, margin, err)
				}
				if slack := c.Health().LeastSlack; margin > 0 && slack > 0.6 {
					t.Errorf("margin %v: least slack %v", margin, slack)
				}
				unlock(t, g)
			})
		}
	}
}

// A lock with the largest margin is not shown as close to its end if all is well.
func TestSlackWithAMargin(t *testing.T) {
	virtual(t, func(t *testing.T) {
		c := client(t, memlock.New(), dlock.Config{})
		g := acquire(t, c, "k", dlock.WithTTL(10*second), dlock.WithMargin(5*second))
		elapse(20 * second)
		if slack := c.Health().LeastSlack; slack < 0.25 || slack > 0.4 {
			t.Errorf("nothing is wrong, and the least slack is %.2f", slack)
		}
		unlock(t, g)
	})
}

// A margin is for the holder: a waiter with one does not lose its place in an outage that a waiter without one survives.
func TestMarginOfAWaiterInAnOutage(t *testing.T) {
	for _, margin := range []time.Duration{0, 5 * second} {
		for range 20 { // pauses differ by the claim
			virtual(t, func(t *testing.T) {
				store, faults := faulty()
				c, other := client(t, faults, dlock.Config{}), client(t, store, dlock.Config{})
				held := acquire(t, other, "k")
				waiter := async(func() *dlock.Guard { return acquire(t, c, "k", dlock.WithTTL(10*second), dlock.WithMargin(margin)) })
				elapse(500 * time.Millisecond)
				submitted := faults.Calls(faultdriver.Acquire)
				faults.Add(faultdriver.Rule{Op: faultdriver.Renew, Fault: faultdriver.Fail})
				elapse(2200 * time.Millisecond) // until 0.3 s before the end of the heartbeat
				faults.Clear()
				elapse(2 * second)
				if n := faults.Calls(faultdriver.Acquire) - submitted; n > 0 {
					t.Errorf("margin %v: the place was lost", margin)
				}
				unlock(t, held)
				unlock(t, <-waiter)
			})
		}
	}
}

// A driver may count with a shorter lease than it was asked for, because a call that shortens it may still arrive. The lock is
// then renewed in time for that one, no more often, and has the margin of that one.
func TestShorterLeaseThanRequested(t *testing.T) {
	virtual(t, func(t *testing.T) {
		var renewals atomic.Int64
		c := client(t, &scripted{Opener: memlock.New(), renew: func(ctx context.Context, d driver.Driver, refs []driver.Ref) ([]driver.State, error) {
			renewals.Add(1)
			sent := time.Now()
			states, err := d.Renew(ctx, refs)
			for i := range states {
				states[i].Until, states[i].Lease = sent.Add(2*second), 2*second
			}
			return states, err
		}}, dlock.Config{})
		g := acquire(t, c, "k", dlock.WithTTL(30*second))
		if err := g.Extend(t.Context(), 60*second); err != nil {
			t.Fatal(err)
		}
		if left := g.Remaining(); left != 1900*time.Millisecond {
			t.Errorf("%v left of a lease of 2s", left)
		}
		renewals.Store(0)
		elapse(6*second + second/2)
		alive(t, g)
		if n := renewals.Load(); n < 8 || n > 10 {
			t.Errorf("%d renewals in 6.5 s, want one each 2/3 s", n)
		}
		unlock(t, g)
	})
}
