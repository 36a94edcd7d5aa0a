package dlock_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/faultdriver"
	"github.com/ceyewan/genesis/pkg/dlock/memlock"
)

const second = time.Second

// Renewal keeps a lock for many times its TTL.
func TestRenewalKeepsTheLock(t *testing.T) {
	virtual(t, func(t *testing.T) {
		c := client(t, memlock.New(), dlock.Config{})
		g := acquire(t, c, "k", dlock.WithTTL(2*second))
		for range 100 {
			elapse(second)
			alive(t, g)
		}
		unlock(t, g)
		ended(t, g, context.Canceled)
		free(t, c, "k")
	})
}

// Renewals that hang do not delay the detection of a loss: it happens before the lease can end,
// counted from when the last answered renewal was sent, and not much earlier.
func TestLossBeforeTheLeaseEndsWhenRenewalsHang(t *testing.T) {
	virtual(t, func(t *testing.T) {
		_, faults := faulty()
		c := client(t, faults, dlock.Config{})
		const ttl = 2 * second
		start := time.Now()
		g := acquire(t, c, "k", dlock.WithTTL(ttl))
		faults.Add(faultdriver.Rule{Op: faultdriver.Renew, Fault: faultdriver.LoseRequest, Hang: true})
		<-g.Done()
		after, margin := time.Since(start), ttl/20
		if after > ttl || after < ttl-margin-50*time.Millisecond {
			t.Errorf("lost after %v of %v", after, ttl)
		}
		ended(t, g, dlock.ErrOwnershipLost)
		if n := faults.Injected(faultdriver.LoseRequest); n < 3 {
			t.Errorf("only %d renewals were tried", n)
		}
		wantErr(t, g.Unlock(ctx), dlock.ErrOwnershipLost)
	})
}

// Validity counts from when a call was sent, not from its answer.
func TestValidityCountsFromTheSending(t *testing.T) {
	virtual(t, func(t *testing.T) {
		_, faults := faulty(faultdriver.Rule{Op: faultdriver.Acquire, Fault: faultdriver.DelayAnswer, Delay: 900 * time.Millisecond})
		c := client(t, faults, dlock.Config{})
		start := time.Now()
		g := acquire(t, c, "k", dlock.WithTTL(2*second), dlock.WithoutRenewal())
		if left := g.Remaining(); left > 1100*time.Millisecond-100*time.Millisecond {
			t.Errorf("%v left of a lease of 2s that was asked for %v ago", left, time.Since(start))
		}
		<-g.Done()
		if took := time.Since(start); took > 2*second {
			t.Errorf("lost after %v", took)
		}
	})
}

// The same for renewals with late answers: the loss comes before the server's own expiry, at any
// time of the network failure.
func TestLossPrecedesExpiryWithLateAnswers(t *testing.T) {
	for i := range 20 {
		virtual(t, func(t *testing.T) {
			store, faults := faulty(faultdriver.Rule{Op: faultdriver.Renew, Fault: faultdriver.DelayAnswer, Delay: 300 * time.Millisecond})
			c, other := client(t, faults, dlock.Config{}), client(t, store, dlock.Config{})
			g := acquire(t, c, "k", dlock.WithTTL(2*second))
			elapse(time.Duration(i) * 173 * time.Millisecond)
			faults.Add(faultdriver.Rule{Op: faultdriver.Renew, Fault: faultdriver.LoseAnswer, Hang: true, Times: 1})
			faults.Add(faultdriver.Rule{Op: faultdriver.Renew, Fault: faultdriver.LoseRequest, Hang: true, Skip: 1})
			next := acquire(t, other, "k") // waits for the server's expiry
			ended(t, g, dlock.ErrOwnershipLost)
			unlock(t, next)
		})
	}
}

// An outage of up to half the TTL is not a loss, at any time.
func TestOutageOfHalfTheTTLIsNoLoss(t *testing.T) {
	for i := range times(40, 300) {
		virtual(t, func(t *testing.T) {
			_, faults := faulty()
			c := client(t, faults, dlock.Config{})
			g := acquire(t, c, "k", dlock.WithTTL(2*second))
			elapse(time.Duration(i) * 31 * time.Millisecond)
			faults.Add(faultdriver.Rule{Op: faultdriver.Renew, Fault: faultdriver.LoseRequest, Hang: i%2 == 0})
			elapse(time.Duration(200+i*20%800) * time.Millisecond)
			faults.Clear()
			for range 20 {
				elapse(second / 4)
				alive(t, g)
			}
			unlock(t, g)
		})
	}
}

// A single error reply is not a loss either, and renewal continues afterwards.
func TestFailedRenewalIsNoLoss(t *testing.T) {
	for _, fault := range []faultdriver.Fault{faultdriver.Fail, faultdriver.LoseRequest, faultdriver.LoseAnswer, faultdriver.Blank, faultdriver.Duplicate} {
		virtual(t, func(t *testing.T) {
			_, faults := faulty(faultdriver.Rule{Op: faultdriver.Renew, Fault: fault, Times: 1})
			c := client(t, faults, dlock.Config{})
			g := acquire(t, c, "k", dlock.WithTTL(second))
			elapse(10 * second)
			alive(t, g)
			if faults.Injected(fault) != 1 {
				t.Errorf("fault %d did not happen", fault)
			}
		})
	}
}

// A part of the backend that does not answer affects only its own claims.
func TestStalledPartHarmsOnlyItsOwnClaims(t *testing.T) {
	virtual(t, func(t *testing.T) {
		_, faults := faulty(faultdriver.Rule{Op: faultdriver.Renew, Fault: faultdriver.Blank, Key: "stalled"})
		c := client(t, faults, dlock.Config{})
		stalled := acquire(t, c, "stalled", dlock.WithTTL(2*second), dlock.WithoutRenewal())
		_ = stalled
		bad, good := acquire(t, c, "stalled2", dlock.WithTTL(2*second)), acquire(t, c, "good", dlock.WithTTL(2*second))
		faults.Add(faultdriver.Rule{Op: faultdriver.Renew, Fault: faultdriver.Blank, Key: "stalled2"})
		elapse(10 * second)
		alive(t, good)
		if bad.Remaining() > 0 {
			t.Error("a lock whose renewals were never answered is still held")
		}
	})
}

// A definite answer that the lock is not held is a loss at once: here after an eviction that is
// pushed, and within one renewal after an eviction whose push was lost.
func TestEvictionIsALoss(t *testing.T) {
	for _, lost := range []bool{false, true} {
		virtual(t, func(t *testing.T) {
			store, faults := faulty()
			if lost {
				faults.Add(faultdriver.Rule{Op: faultdriver.Push, Fault: faultdriver.LosePush})
			}
			c, admin := client(t, faults, dlock.Config{}), client(t, store, dlock.Config{})
			g := acquire(t, c, "k", dlock.WithTTL(3*second))
			a, err := admin.Admin()
			if err != nil {
				t.Fatal(err)
			}
			wantErr(t, a.Evict(ctx, "k", g.Token()+1), dlock.ErrLockNotHeld)
			alive(t, g)
			start := time.Now()
			if err := a.Evict(ctx, "k", g.Token()); err != nil {
				t.Fatal(err)
			}
			<-g.Done()
			if took := time.Since(start); (lost && took > second) || (!lost && took > 10*time.Millisecond) {
				t.Errorf("noticed after %v", took)
			}
			wantErr(t, g.Unlock(ctx), dlock.ErrOwnershipLost)
			wantErr(t, g.Unlock(ctx), dlock.ErrOwnershipLost)
		})
	}
}

// Time during which the machine was suspended counts against the lease.
func TestSuspendedMachineLosesItsLocks(t *testing.T) {
	virtual(t, func(t *testing.T) {
		var slept atomic.Int64
		c := client(t, memlock.New(), dlock.Config{}, dlock.WithSleptClock(func() time.Duration { return time.Duration(slept.Load()) }))
		asked, unasked := acquire(t, c, "asked"), acquire(t, c, "unasked")
		long := acquire(t, c, "long", dlock.WithTTL(3*time.Hour), dlock.WithoutRenewal())
		slept.Add(int64(time.Hour))
		if left := asked.Remaining(); left != 0 {
			t.Errorf("%v left after an hour of sleep", left)
		}
		ended(t, asked, dlock.ErrOwnershipLost)
		elapse(600 * time.Millisecond)
		ended(t, unasked, dlock.ErrOwnershipLost)
		if left := long.Remaining(); left > 2*time.Hour || left < 110*time.Minute {
			t.Errorf("%v left of three hours after one was slept", left)
		}
		direct := acquire(t, c, "direct")
		slept.Add(int64(time.Minute))
		wantErr(t, direct.Unlock(ctx), dlock.ErrOwnershipLost)
		fresh := acquire(t, c, "fresh")
		elapse(time.Minute)
		alive(t, fresh)
		wantErr(t, unasked.Unlock(ctx), dlock.ErrOwnershipLost)
	})
}

func TestSleepNoiseIsNoLoss(t *testing.T) {
	virtual(t, func(t *testing.T) {
		var reads atomic.Int64
		noisy := func() time.Duration { return time.Duration(reads.Add(1)%5) * time.Millisecond }
		c := client(t, memlock.New(), dlock.Config{}, dlock.WithSleptClock(noisy))
		g := acquire(t, c, "k", dlock.WithTTL(200*time.Millisecond))
		elapse(time.Minute)
		alive(t, g)
	})
}

func TestWithoutRenewalEndsWithItsTTL(t *testing.T) {
	virtual(t, func(t *testing.T) {
		c := client(t, memlock.New(), dlock.Config{})
		start := time.Now()
		g := acquire(t, c, "k", dlock.WithTTL(second), dlock.WithoutRenewal())
		<-g.Done()
		if took := time.Since(start); took != 950*time.Millisecond {
			t.Errorf("over after %v of 1s", took)
		}
	})
}

// A lock without renewal that had to wait still gets its whole TTL.
func TestWithoutRenewalAfterAWait(t *testing.T) {
	virtual(t, func(t *testing.T) {
		c := client(t, memlock.New(), dlock.Config{})
		first := acquire(t, c, "k")
		got := async(func() *dlock.Guard { return acquire(t, c, "k", dlock.WithTTL(30*second), dlock.WithoutRenewal()) })
		elapse(20 * second)
		unlock(t, first)
		g, start := <-got, time.Now()
		<-g.Done()
		if took := time.Since(start); took < 28*second || took > 29*second {
			t.Errorf("over after %v of 30s", took)
		}
	})
}

// The same if the lock was granted while a heartbeat of the waiter was under way.
func TestWithoutRenewalAfterAGrantDuringAHeartbeat(t *testing.T) {
	virtual(t, func(t *testing.T) {
		var first *dlock.Guard
		renewals := 0
		renew := func(ctx context.Context, d driver.Driver, refs []driver.Ref) ([]driver.State, error) {
			states, err := d.Renew(ctx, refs)
			if renewals++; renewals == 1 {
				unlock(t, first)
				elapse(time.Millisecond)
			}
			return states, err
		}
		store := memlock.New()
		first = acquire(t, client(t, store, dlock.Config{}), "k", dlock.WithTTL(time.Hour))
		c := client(t, &scripted{Opener: store, renew: renew}, dlock.Config{})
		g := acquire(t, c, "k", dlock.WithTTL(30*second), dlock.WithoutRenewal())
		start := time.Now()
		<-g.Done()
		if took := time.Since(start).Round(10 * time.Millisecond); renewals != 2 || took != 28500*time.Millisecond {
			t.Errorf("over after %v of 30s, with %d renewals", took, renewals)
		}
	})
}

// An event during the renewal that grants such a lock, or during an earlier attempt that fails, does not extend it, even if the answers
// to what follows are lost.
func TestWithoutRenewalAfterAnEventDuringARenewal(t *testing.T) {
	for _, fail := range []int{0, 1, 2} {
		t.Run(fmt.Sprintf("%d attempts fail", fail), func(t *testing.T) {
			virtual(t, func(t *testing.T) { eventDuringARenewal(t, fail) })
		})
	}
}

func eventDuringARenewal(t *testing.T, fail int) {
	var first *dlock.Guard
	events, n := make(chan driver.Event), 0
	renew := func(ctx context.Context, d driver.Driver, refs []driver.Ref) ([]driver.State, error) {
		n++
		if n == 1 {
			unlock(t, first)
		}
		states, err := d.Renew(ctx, refs)
		if n <= max(1, fail) {
			events <- driver.Event{}
			elapse(time.Millisecond)
		}
		if n != fail+1 && n < fail+4 {
			return nil, errors.New("the answer is lost")
		}
		return states, err
	}
	store := memlock.New()
	first = acquire(t, client(t, store, dlock.Config{}), "k", dlock.WithTTL(time.Hour))
	c := client(t, &scripted{Opener: store, renew: renew, events: events}, dlock.Config{})
	g := acquire(t, c, "k", dlock.WithTTL(30*second), dlock.WithoutRenewal())
	start := time.Now()
	<-g.Done()
	if took := time.Since(start).Round(10 * time.Millisecond); took != 28500*time.Millisecond {
		t.Errorf("over after %v of 30s", took)
	}
	if fail > 0 && n != fail+1 || fail == 0 && n != 4 { // with 0, it is verified, and two answers are lost
		t.Errorf("%d renewals", n)
	}
}

// Neither does an event during the renewal of an Extend: what follows only verifies the lock.
func TestExtendWithAnEventDuringItsRenewal(t *testing.T) {
	virtual(t, func(t *testing.T) {
		events, n := make(chan driver.Event), 0
		renew := func(ctx context.Context, d driver.Driver, refs []driver.Ref) ([]driver.State, error) {
			states, err := d.Renew(ctx, refs)
			if n++; n == 1 {
				events <- driver.Event{}
				elapse(time.Millisecond)
			} else if n < 5 {
				return nil, errors.New("the answer is lost")
			}
			return states, err
		}
		c := client(t, &scripted{Opener: memlock.New(), renew: renew, events: events}, dlock.Config{})
		g := acquire(t, c, "k", dlock.WithTTL(30*second), dlock.WithoutRenewal())
		start := time.Now()
		if err := g.Extend(ctx, 30*second); err != nil {
			t.Fatal(err)
		}
		<-g.Done()
		if took := time.Since(start).Round(10 * time.Millisecond); took != 28500*time.Millisecond || n < 5 {
			t.Errorf("over after %v of 30s, with %d renewals", took, n)
		}
	})
}

// A lock with the least TTL of its backend ends with it as well: to verify it, no less can be asked for.
func TestWithoutRenewalAtTheLeastTTL(t *testing.T) {
	virtual(t, func(t *testing.T) {
		events := make(chan driver.Event)
		store := &scripted{Opener: memlock.New(), events: events, caps: func(c *driver.Caps) { c.MinTTL = second }}
		g := acquire(t, client(t, store, dlock.Config{}), "k", dlock.WithTTL(second), dlock.WithoutRenewal())
		start := time.Now()
		for range 4 {
			events <- driver.Event{}
			elapse(second / 5)
		}
		<-g.Done()
		if took := time.Since(start).Round(10 * time.Millisecond); took != 950*time.Millisecond {
			t.Errorf("over after %v of 1s", took)
		}
	})
}

// Each of two Extends with the same TTL gets it counted from its own call, also if they overlap.
func TestOverlappingExtendsWithoutRenewal(t *testing.T) {
	virtual(t, func(t *testing.T) {
		sent, answer, renewals := make(chan struct{}), make(chan struct{}), 0
		renew := func(ctx context.Context, d driver.Driver, refs []driver.Ref) ([]driver.State, error) {
			states, err := d.Renew(ctx, refs)
			if renewals++; renewals == 1 {
				close(sent)
				<-answer
			}
			return states, err
		}
		c := client(t, &scripted{Opener: memlock.New(), renew: renew}, dlock.Config{})
		g := acquire(t, c, "k", dlock.WithTTL(20*second), dlock.WithoutRenewal())
		extend := func() error { return g.Extend(ctx, 20*second) }
		first := async(extend)
		<-sent
		elapse(second)
		next := async(extend)
		elapse(time.Millisecond)
		close(answer)
		if err := errors.Join(<-first, <-next); err != nil || renewals != 2 || g.Remaining() != 19*second {
			t.Errorf("%d renewals, %v left of 20s: %v", renewals, g.Remaining(), err)
		}
	})
}

func TestExtend(t *testing.T) {
	virtual(t, func(t *testing.T) {
		c := client(t, memlock.New(), dlock.Config{})
		g := acquire(t, c, "k", dlock.WithTTL(second), dlock.WithoutRenewal())
		elapse(second / 2)
		if err := g.Extend(ctx, 20*second); err != nil {
			t.Fatal(err)
		}
		if left := g.Remaining(); left != 19*second {
			t.Errorf("%v left after an extension to 20s", left)
		}
		elapse(15 * second)
		if err := g.Extend(ctx, second); err != nil {
			t.Fatal(err)
		}
		if left := g.Remaining(); left != 950*time.Millisecond {
			t.Errorf("%v left after shortening to 1s", left)
		}
		wantErr(t, g.Extend(ctx, 0), dlock.ErrInvalidTTL)
		wantErr(t, g.Extend(ctx, 25*time.Hour), dlock.ErrInvalidTTL)
		<-g.Done()
		wantErr(t, g.Extend(ctx, second), dlock.ErrOwnershipLost)
	})
}

func TestExtendIsRenewedFromThenOn(t *testing.T) {
	virtual(t, func(t *testing.T) {
		_, faults := faulty()
		c := client(t, faults, dlock.Config{})
		g := acquire(t, c, "k", dlock.WithTTL(second))
		elapse(300 * time.Millisecond)
		if err := g.Extend(ctx, time.Minute); err != nil {
			t.Fatal(err)
		}
		before := faults.Calls(faultdriver.Renew)
		elapse(time.Hour)
		alive(t, g)
		if n := faults.Calls(faultdriver.Renew) - before; n > 200 {
			t.Errorf("%d renewals in an hour of a TTL of a minute", n)
		}
		unlock(t, g)
		wantErr(t, g.Extend(ctx, second), dlock.ErrLockNotHeld)
	})
}

// An Extend whose renewal is not answered ends with its context, as unknown. A shorter lease that
// may still arrive counts instead of the longer one.
func TestExtendUnanswered(t *testing.T) {
	virtual(t, func(t *testing.T) {
		_, faults := faulty()
		c := client(t, faults, dlock.Config{})
		g := acquire(t, c, "k", dlock.WithTTL(time.Minute))
		faults.Add(faultdriver.Rule{Op: faultdriver.Renew, Fault: faultdriver.LoseAnswer, Hang: true})
		short, cancel := context.WithTimeout(ctx, second)
		defer cancel()
		wantErr(t, g.Extend(short, 4*second), dlock.ErrUnknownOutcome, context.DeadlineExceeded)
		faults.Clear()
		if err := g.Extend(ctx, time.Minute); err != nil {
			t.Fatal(err)
		}
		if left := g.Remaining(); left > 4*second {
			t.Errorf("%v are believed, though a renewal with 4s may be on its way", left)
		}
		elapse(time.Minute)
		alive(t, g)
	})
}

// A backend subtracts a share of each lease, for clocks that drift. If a shorter lease counts, so does its share alone: that of
// a long lease can be more than all of the shorter one.
func TestExtendUnansweredOnClocksThatDrift(t *testing.T) {
	virtual(t, func(t *testing.T) {
		_, faults := faulty()
		drifting, renewals := drift(faults, 0.01)
		c := client(t, drifting, dlock.Config{})
		g := acquire(t, c, "k", dlock.WithTTL(10*time.Hour))
		faults.Add(faultdriver.Rule{Op: faultdriver.Renew, Fault: faultdriver.LoseAnswer, Hang: true})
		short, cancel := context.WithTimeout(ctx, second)
		defer cancel()
		wantErr(t, g.Extend(short, time.Minute), dlock.ErrUnknownOutcome, context.DeadlineExceeded)
		faults.Clear()
		if err := g.Extend(ctx, 10*time.Hour); err != nil {
			t.Fatal(err)
		}
		const want = time.Minute - time.Minute/100 - time.Minute/20 // its margin
		if left := g.Remaining(); left != want {
			t.Errorf("%v left, want %v", left, want)
		}
		before := renewals.Load()
		elapse(2 * time.Minute)
		alive(t, g)
		if n := renewals.Load() - before; n > 10 {
			t.Errorf("%d renewals in two minutes, want one each 20 s at first", n)
		}
		unlock(t, g)
	})
}

// What is subtracted from a long lease may be more than the interval of renewals that a user has set. It is no lease that is
// almost over.
func TestRenewIntervalOnClocksThatDrift(t *testing.T) {
	virtual(t, func(t *testing.T) {
		drifting, renewals := drift(memlock.New(), 0.01)
		c := client(t, drifting, dlock.Config{RenewInterval: time.Second})
		g := acquire(t, c, "k", dlock.WithTTL(time.Hour))
		elapse(time.Minute)
		if n := renewals.Load(); n < 55 || n > 65 {
			t.Errorf("%d renewals in a minute, want one each second", n)
		}
		unlock(t, g)
	})
}

// However much is subtracted, a lock is renewed a few times per lease, also with a margin.
func TestRenewalsOnClocksThatDriftMuch(t *testing.T) {
	for _, tc := range []struct{ share, margin float64 }{{0.2, 0}, {0.34, 0}, {0.5, 0}, {0.2, 0.5}, {0.4, 0.5}} {
		t.Run(fmt.Sprint(tc.share, " ", tc.margin), func(t *testing.T) {
			virtual(t, func(t *testing.T) {
				const ttl = time.Minute
				drifting, renewals := drift(memlock.New(), tc.share)
				c := client(t, drifting, dlock.Config{})
				g := acquire(t, c, "k", dlock.WithTTL(ttl), dlock.WithMargin(time.Duration(tc.margin*float64(ttl))))
				elapse(5 * ttl)
				alive(t, g)
				if n := renewals.Load(); n < 15 || n > 5*100 {
					t.Errorf("%d renewals in five leases", n)
				}
				unlock(t, g)
			})
		})
	}
}

// drift is a backend that subtracts a share of each lease, and counts its renewals.
func drift(o driver.Opener, share float64) (*scripted, *atomic.Int64) {
	subtracted := func(ttl time.Duration) time.Duration { return time.Duration(share * float64(ttl)) }
	renewals := &atomic.Int64{}
	return &scripted{
		Opener: o,
		acquire: func(ctx context.Context, d driver.Driver, r driver.Request) (driver.State, error) {
			st, err := d.Acquire(ctx, r)
			st.Until = st.Until.Add(-subtracted(r.TTL))
			return st, err
		},
		renew: func(ctx context.Context, d driver.Driver, refs []driver.Ref) ([]driver.State, error) {
			if renewals.Add(1) > 1000 {
				return nil, errors.New("too many renewals")
			}
			states, err := d.Renew(ctx, refs)
			for i := range states {
				states[i].Until = states[i].Until.Add(-subtracted(refs[i].TTL))
			}
			return states, err
		},
	}, renewals
}

func TestMaxHoldIsALoss(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := memlock.New()
		c, other := client(t, store, dlock.Config{}), client(t, store, dlock.Config{})
		start := time.Now()
		g := acquire(t, c, "k", dlock.WithTTL(2*second), dlock.WithMaxHold(7*second))
		<-g.Done()
		if took := time.Since(start); took != 7*second {
			t.Errorf("over after %v of 7s", took)
		}
		ended(t, g, dlock.ErrOwnershipLost)
		next := acquire(t, other, "k") // without Unlock: the lease ends it
		if took := time.Since(start); took > 9*second+100*time.Millisecond {
			t.Errorf("free only after %v", took)
		}
		wantErr(t, g.Unlock(ctx), dlock.ErrOwnershipLost)
		synctest.Wait()
		alive(t, next)
	})
}

func TestMinHoldKeepsTheKey(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := memlock.New()
		c, other := client(t, store, dlock.Config{}), client(t, store, dlock.Config{})
		start := time.Now()
		g := acquire(t, c, "k", dlock.WithTTL(2*second), dlock.WithMinHold(10*second))
		unlock(t, g)
		ended(t, g, context.Canceled)
		wantErr(t, g.Unlock(ctx), dlock.ErrLockNotHeld)
		next := acquire(t, other, "k")
		if took := time.Since(start); took < 10*second || took > 10*second+10*time.Millisecond {
			t.Errorf("free after %v of 10s", took)
		}
		unlock(t, next)
		late := acquire(t, c, "k", dlock.WithMinHold(second))
		elapse(2 * second)
		unlock(t, late)
		free(t, c, "k")
	})
}

// Readers and permits have a minimum hold, too: what excludes them, or the last permit, waits for it.
func TestMinHoldOfReadersAndPermits(t *testing.T) {
	cases := map[string]struct{ mode, next dlock.LockOption }{
		"reader and writer": {dlock.WithShared(), nil},
		"permits":           {dlock.WithPermits(1), dlock.WithPermits(1)},
	}
	for name, one := range cases {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T) {
				store := memlock.New()
				c, other := client(t, store, dlock.Config{}), client(t, store, dlock.Config{})
				start, next := time.Now(), []dlock.LockOption(nil)
				if one.next != nil {
					next = append(next, one.next)
				}
				unlock(t, acquire(t, c, "k", one.mode, dlock.WithTTL(2*second), dlock.WithMinHold(10*second)))
				unlock(t, acquire(t, other, "k", next...))
				if took := time.Since(start); took < 10*second || took > 10*second+10*time.Millisecond {
					t.Errorf("free after %v of 10s", took)
				}
			})
		})
	}
}

// If the Client is closed within a minimum hold, the key ends with its lease.
func TestMinHoldAndClose(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := memlock.New()
		c, other := client(t, store, dlock.Config{}), client(t, store, dlock.Config{})
		g := acquire(t, c, "k", dlock.WithTTL(2*second), dlock.WithMinHold(time.Minute))
		unlock(t, g)
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
		if len(inspect(t, other, "k")) != 1 {
			t.Error("the key is free though its minimum hold is not over")
		}
		elapse(2 * second)
		free(t, other, "k")
	})
}

// A waiter that is granted a lock has the rest of a heartbeat. A large margin leaves so little of it that the lock would end
// before its next renewal.
func TestMarginOfAWaiter(t *testing.T) {
	for _, fixed := range []bool{false, true} {
		virtual(t, func(t *testing.T) {
			store := memlock.New()
			c, other := client(t, store, dlock.Config{}), client(t, store, dlock.Config{})
			opts := []dlock.LockOption{dlock.WithTTL(10 * second), dlock.WithMargin(2200 * time.Millisecond)}
			if fixed {
				opts = append(opts, dlock.WithoutRenewal())
			}
			held := acquire(t, other, "k")
			waiter := async(func() *dlock.Guard { return acquire(t, c, "k", opts...) })
			elapse(500 * time.Millisecond)
			unlock(t, held)
			g := <-waiter
			elapse(7 * second)
			alive(t, g)
			unlock(t, g)
		})
	}
}

// A wait that ends before the lock is free says who has it, whatever the margin of the waiter is.
func TestMarginOfAWaitThatEnds(t *testing.T) {
	for _, margin := range []time.Duration{0, 2500 * time.Millisecond, 4 * second} {
		virtual(t, func(t *testing.T) {
			store := memlock.New()
			c, other := client(t, store, dlock.Config{}), client(t, store, dlock.Config{})
			held := acquire(t, other, "k")
			_, err := c.Acquire(t.Context(), "k", dlock.WithTTL(10*second), dlock.WithWait(800*time.Millisecond), dlock.WithMargin(margin))
			if !errors.Is(err, dlock.ErrLockHeldByOther) || errors.Is(err, dlock.ErrUnknownOutcome) {
				t.Errorf("with a margin of %v: %v", margin, err)
			}
			unlock(t, held)
		})
	}
}

func TestMarginEndsOwnershipEarlier(t *testing.T) {
	virtual(t, func(t *testing.T) {
		c := client(t, memlock.New(), dlock.Config{})
		start := time.Now()
		g := acquire(t, c, "k", dlock.WithTTL(4*second), dlock.WithoutRenewal(), dlock.WithMargin(second))
		<-g.Done()
		if took := time.Since(start); took != 3*second {
			t.Errorf("over after %v of 4s with a margin of 1s", took)
		}
	})
}

// A waiter is granted the rest of a heartbeat. A margin as long as that, by WithMargin or by a long
// TTL, must not make the grant unusable.
func TestLongLeasesAreHandedOver(t *testing.T) {
	for _, opts := range [][]dlock.LockOption{
		{dlock.WithTTL(10 * time.Minute)},
		{dlock.WithTTL(24 * time.Hour)},
		{dlock.WithTTL(10 * second), dlock.WithMargin(4 * second)},
	} {
		virtual(t, func(t *testing.T) {
			c := client(t, memlock.New(), dlock.Config{})
			first := acquire(t, c, "k", opts...)
			got := async(func() *dlock.Guard { return acquire(t, c, "k", opts...) })
			elapse(time.Minute)
			unlock(t, first)
			start := time.Now()
			g := <-got
			if took := time.Since(start); took > 10*time.Millisecond {
				t.Errorf("handed over after %v", took)
			}
			elapse(5 * second)
			alive(t, g)
		})
	}
}

// One goroutine and few calls renew any number of locks.
func TestRenewalIsBatched(t *testing.T) {
	virtual(t, func(t *testing.T) {
		_, faults := faulty()
		c := client(t, faults, dlock.Config{})
		for i := range 1000 {
			acquire(t, c, string(rune(0x4e00+i)), dlock.WithTTL(30*second))
			elapse(10 * time.Millisecond)
		}
		elapse(time.Minute)
		before := faults.Calls(faultdriver.Renew)
		elapse(10 * time.Minute)
		if n := faults.Calls(faultdriver.Renew) - before; n > 70*10 {
			t.Errorf("%d renewal calls in ten minutes for 1000 locks of one TTL", n)
		}
	})
}

// Any mix of TTLs is renewed in time.
func TestManyTTLs(t *testing.T) {
	virtual(t, func(t *testing.T) {
		c := client(t, memlock.New(), dlock.Config{})
		var guards []*dlock.Guard
		for i := range 200 {
			ttl := time.Duration(50+i*i*7) * time.Millisecond
			guards = append(guards, acquire(t, c, string(rune(0x4e00+i)), dlock.WithTTL(ttl)))
		}
		for range 50 {
			elapse(777 * time.Millisecond)
			for _, g := range guards {
				alive(t, g)
			}
		}
	})
}

// The alarm of a short hold that has ended does not keep the scheduler from checking twice a second
// whether the machine was suspended.
func TestSuspensionIsSeenAfterAShortHold(t *testing.T) {
	virtual(t, func(t *testing.T) {
		var slept atomic.Int64
		c := client(t, memlock.New(), dlock.Config{DefaultTTL: time.Hour}, dlock.WithSleptClock(func() time.Duration { return time.Duration(slept.Load()) }))
		unlock(t, acquire(t, c, "short"))
		synctest.Wait()
		elapse(time.Millisecond)
		g := acquire(t, c, "long")
		slept.Add(int64(2 * time.Hour))
		elapse(600 * time.Millisecond)
		ended(t, g, dlock.ErrOwnershipLost)
	})
}

// A reading of suspended time is valid for 0.2 ms, and not longer.
func TestSuspendedTimeIsReadSometimes(t *testing.T) {
	now, slept, readings := int64(0), int64(0), 0
	read := dlock.SuspendClock(func() int64 { return now }, func() int64 {
		readings++
		return slept
	})
	for range 100 {
		now += int64(10 * time.Microsecond)
		read()
	}
	if readings != 5 {
		t.Errorf("%d readings in a millisecond, want 5", readings)
	}
	slept = int64(time.Hour)
	now += int64(10*time.Microsecond) - 1
	if got := read(); got != 0 { // the fifth reading was one nanosecond less than 200 microseconds ago
		t.Errorf("slept for %v, want the reading before", time.Duration(got))
	}
	now++
	if got := read(); got != slept {
		t.Errorf("slept for %v, want %v", time.Duration(got), time.Duration(slept))
	}
}

// Failed renewals are repeated at shorter intervals near the end of the lease, but never in a
// burst.
func TestRenewalsNearTheEnd(t *testing.T) {
	virtual(t, func(t *testing.T) {
		var sent []time.Time
		s := &scripted{Opener: memlock.New(), remote: true}
		s.renew = func(context.Context, driver.Driver, []driver.Ref) ([]driver.State, error) {
			sent = append(sent, time.Now())
			return nil, unreached(errRefused)
		}
		g := acquire(t, client(t, s, dlock.Config{DefaultTTL: 3 * second}), "k")
		<-g.Done()
		least := 3 * second
		for i := range sent[1:] {
			least = min(least, sent[i+1].Sub(sent[i]))
		}
		if least != 5*time.Millisecond {
			t.Errorf("of %d renewals two were %v apart", len(sent), least)
		}
	})
}

// A difference within the error of two clocks is not a suspend; a greater one counts in full.
func TestSleepCountsAboveTheNoise(t *testing.T) {
	virtual(t, func(t *testing.T) {
		var slept atomic.Int64
		c := client(t, memlock.New(), dlock.Config{}, dlock.WithSleptClock(func() time.Duration { return time.Duration(slept.Load()) }))
		g := acquire(t, c, "k")
		whole := g.Remaining()
		for _, tc := range []struct{ slept, counts time.Duration }{
			{5 * time.Millisecond, 0},
			{5*time.Millisecond + 1, 5*time.Millisecond + 1},
		} {
			slept.Store(int64(tc.slept))
			if got := whole - g.Remaining(); got != tc.counts {
				t.Errorf("%v counts as %v", tc.slept, got)
			}
		}
	})
}

// A lock that was acquired after a suspend is not renewed because of it: its lease began after the
// suspend.
func TestSleepBeforeTheLockDoesNotRenewIt(t *testing.T) {
	virtual(t, func(t *testing.T) {
		var slept atomic.Int64
		_, faults := faulty()
		c := client(t, faults, dlock.Config{}, dlock.WithSleptClock(func() time.Duration { return time.Duration(slept.Load()) }))
		before := acquire(t, c, "before", dlock.WithoutRenewal())
		slept.Store(int64(time.Minute))
		acquire(t, c, "after")
		elapse(second)
		ended(t, before, dlock.ErrOwnershipLost)
		if n := faults.Calls(faultdriver.Renew); n != 0 {
			t.Errorf("%d renewals", n)
		}
	})
}

// A claim that is released while it waits for a renewal in flight to return is not renewed.
func TestReleasedBeforeItsRenewal(t *testing.T) {
	virtual(t, func(t *testing.T) {
		landed := make(chan struct{})
		var renewed []string
		s := &scripted{Opener: memlock.New(), remote: true}
		s.renew = func(ctx context.Context, d driver.Driver, refs []driver.Ref) ([]driver.State, error) {
			for _, r := range refs {
				renewed = append(renewed, r.Key)
			}
			if len(renewed) == 1 {
				<-landed
			}
			return d.Renew(ctx, refs)
		}
		c := client(t, s, dlock.Config{DefaultTTL: 3 * second})
		first := acquire(t, c, "first")
		elapse(500 * time.Millisecond)
		second := acquire(t, c, "second")
		elapse(1100 * time.Millisecond) // the first is being renewed, the second is due
		unlock(t, second)
		close(landed)
		elapse(100 * time.Millisecond)
		synctest.Wait()
		if !slices.Equal(renewed, []string{"first"}) {
			t.Errorf("renewed were %q", renewed)
		}
		unlock(t, first)
		if n := c.Entries(); n != 0 {
			t.Errorf("%d entries are left", n)
		}
	})
}
