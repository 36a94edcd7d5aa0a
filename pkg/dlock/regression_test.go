package dlock_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/memlock"
)

// Each test here reproduces a defect that existed once.

var errNet = errors.New("network")

type renewFunc = func(context.Context, driver.Driver, []driver.Ref) ([]driver.State, error)

// A push overtakes the answer to a renewal that still said Queued: the rest of the heartbeat is
// renewed in time.
func TestPushOvertakesQueuedAnswer(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store, n := memlock.New(), 0
		late := func(ctx context.Context, d driver.Driver, r []driver.Ref) ([]driver.State, error) {
			st, err := d.Renew(ctx, r)
			n++
			if n == 2 {
				elapse(100 * time.Millisecond)
			}
			return st, err
		}
		a, b := client(t, store, dlock.Config{}), client(t, &scripted{Opener: store, renew: late}, dlock.Config{})
		g := acquire(t, a, "k")
		got := async(func() *dlock.Guard { return acquire(t, b, "k") })
		elapse(2050 * time.Millisecond)
		unlock(t, g)
		h := <-got
		elapse(20 * second)
		alive(t, h)
	})
}

// A shorter lease may have been set by a call that was never answered.
func TestExtendShorterUnanswered(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store, dead := memlock.New(), false
		renew := func(ctx context.Context, d driver.Driver, r []driver.Ref) ([]driver.State, error) {
			if dead {
				return nil, errNet
			}
			st, err := d.Renew(ctx, r)
			dead = r[0].TTL == 10*second
			if dead {
				return nil, errNet
			}
			return st, err
		}
		a, b := client(t, store, dlock.Config{}), client(t, &scripted{Opener: store, renew: renew}, dlock.Config{})
		g := acquire(t, b, "k", dlock.WithTTL(time.Hour))
		short, cancel := context.WithTimeout(ctx, second)
		defer cancel()
		wantErr(t, g.Extend(short, 10*second), dlock.ErrUnknownOutcome)
		acquire(t, a, "k")
		ended(t, g, dlock.ErrOwnershipLost)
	})
}

// The same for an attempt to submit that arrives late, after an Extend.
func TestLateAcquireShortens(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store, n := memlock.New(), 0
		b := client(t, &scripted{
			Opener: store,
			acquire: func(ctx context.Context, d driver.Driver, r driver.Request) (driver.State, error) {
				n++
				if n == 1 {
					time.AfterFunc(5*second, func() { _, _ = d.Acquire(ctx, r) })
					return driver.State{}, errNet
				}
				return d.Acquire(ctx, r)
			},
			renew: func(ctx context.Context, d driver.Driver, r []driver.Ref) ([]driver.State, error) {
				if time.Since(started) > 2*second {
					return nil, errNet
				}
				return d.Renew(ctx, r)
			},
		}, dlock.Config{})
		started = time.Now()
		g := acquire(t, b, "k", dlock.WithTTL(10*second))
		if err := g.Extend(ctx, time.Hour); err != nil {
			t.Fatal(err)
		}
		acquire(t, client(t, store, dlock.Config{}), "k")
		ended(t, g, dlock.ErrOwnershipLost)
	})
}

var started time.Time

// A push of a grant to an earlier attempt is not mistaken for a grant to a later one.
func TestStalePushAfterResubmission(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store, n := memlock.New(), 0
		b := client(t, &scripted{Opener: store, acquire: func(ctx context.Context, d driver.Driver, r driver.Request) (driver.State, error) {
			switch n++; n {
			case 1:
				_, _ = d.Acquire(ctx, r)
				elapse(2 * second)
				return driver.State{}, errNet
			case 2:
				elapse(2 * second)
				return driver.State{}, errNet
			}
			return d.Acquire(ctx, r)
		}}, dlock.Config{})
		a := client(t, store, dlock.Config{})
		g := acquire(t, a, "k")
		one := async(func() *dlock.Guard { return acquire(t, b, "k") })
		elapse(second)
		two := async(func() *dlock.Guard { return acquire(t, a, "k") })
		synctest.Wait()
		unlock(t, g) // grants to b, which does not know yet that it is queued
		var first *dlock.Guard
		rest := one
		select {
		case first = <-one:
			rest = two
		case first = <-two:
		}
		elapse(5 * second)
		select {
		case other := <-rest:
			t.Errorf("tokens %d and %d are held together", first.Token(), other.Token())
		default:
		}
		unlock(t, first)
		<-rest
	})
}

// The same if the push arrives after the later attempt was queued.
func TestLatePushAfterResubmission(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store, events, n := memlock.New(), make(chan driver.Event), 0
		var id string
		b := client(t, &scripted{Opener: store, events: events, acquire: func(ctx context.Context, d driver.Driver, r driver.Request) (driver.State, error) {
			n++
			if n == 1 {
				id = r.ID
				return driver.State{}, errNet
			}
			return d.Acquire(ctx, r)
		}}, dlock.Config{})
		g := acquire(t, client(t, store, dlock.Config{}), "k")
		got := async(func() *dlock.Guard { return acquire(t, b, "k") })
		elapse(second)
		events <- driver.Event{Key: "k", ID: id, State: driver.State{Phase: driver.Held, Token: g.Token() + 1}}
		elapse(second)
		select {
		case <-got:
			t.Error("a stale push was taken for a grant")
		default:
		}
		unlock(t, g)
		unlock(t, <-got)
	})
}

// One renewal that hangs does not lose a lock: neither after a longer lease was requested, nor
// after the key was granted.
func TestOneHungRenewalIsNoLoss(t *testing.T) {
	hangOnce := func(hang *atomic.Bool) renewFunc {
		return func(ctx context.Context, d driver.Driver, r []driver.Ref) ([]driver.State, error) {
			if hang.CompareAndSwap(true, false) {
				<-ctx.Done()
				return nil, ctx.Err()
			}
			return d.Renew(ctx, r)
		}
	}
	t.Run("extending", func(t *testing.T) {
		virtual(t, func(t *testing.T) {
			var hang atomic.Bool
			hang.Store(true)
			c := client(t, &scripted{Opener: memlock.New(), remote: true, renew: hangOnce(&hang)}, dlock.Config{})
			if err := acquire(t, c, "k").Extend(ctx, time.Hour); err != nil {
				t.Error(err)
			}
		})
	})
	t.Run("granted", func(t *testing.T) {
		virtual(t, func(t *testing.T) {
			var hang atomic.Bool
			store := memlock.New()
			b := client(t, &scripted{Opener: store, remote: true, renew: hangOnce(&hang)}, dlock.Config{})
			g := acquire(t, client(t, store, dlock.Config{}), "k")
			got := async(func() *dlock.Guard { return acquire(t, b, "k") })
			elapse(1500 * time.Millisecond)
			hang.Store(true)
			unlock(t, g)
			h := <-got
			elapse(20 * second)
			alive(t, h)
		})
	})
}

// A lock with a long lease whose renewals hang does not delay the renewal of one with a short
// lease.
func TestLongLeasesDoNotHoldUpShortOnes(t *testing.T) {
	virtual(t, func(t *testing.T) {
		renew := func(ctx context.Context, d driver.Driver, r []driver.Ref) ([]driver.State, error) {
			for _, x := range r {
				if x.Key == "stalled" {
					<-ctx.Done()
					return nil, ctx.Err()
				}
			}
			return d.Renew(ctx, r)
		}
		c := client(t, &scripted{Opener: memlock.New(), remote: true, renew: renew}, dlock.Config{RenewInterval: second, DefaultTTL: time.Minute})
		acquire(t, c, "stalled")
		elapse(second / 2)
		g := acquire(t, c, "healthy", dlock.WithTTL(3*second))
		elapse(10 * second)
		alive(t, g)
	})
}

// Close ends every context before it releases anything.
func TestCloseEndsContextsFirst(t *testing.T) {
	virtual(t, func(t *testing.T) {
		done := map[string]<-chan struct{}{}
		var early atomic.Int64
		release := func(ctx context.Context, d driver.Driver, r driver.Ref) (driver.State, error) {
			select {
			case <-done[r.Key]:
			default:
				early.Add(1)
			}
			return d.Release(ctx, r)
		}
		c := client(t, &scripted{Opener: memlock.New(), release: release}, dlock.Config{})
		for i := range 300 {
			g := acquire(t, c, fmt.Sprint(i))
			done[g.Key()] = g.Done()
			for range 50 {
				_, cancel := g.WithContext(ctx)
				defer cancel()
			}
		}
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
		if n := early.Load(); n > 0 {
			t.Errorf("%d of 300 were released while their contexts lived", n)
		}
	})
}

// The time of Close is proportional to the number of held locks.
func TestCloseReleasesMany(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := memlock.New()
		c := client(t, store, dlock.Config{})
		for i := range 20_000 {
			acquire(t, c, fmt.Sprint(i))
		}
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
		a, err := client(t, store, dlock.Config{}).Admin()
		if err != nil {
			t.Fatal(err)
		}
		if keys, _, err := a.ListPage(ctx, "", "", 10); err != nil || len(keys) > 0 {
			t.Errorf("left behind: %v, %v", keys, err)
		}
	})
}

// A Check that the backend does not answer does not block Close.
func TestCheckDoesNotBlockClose(t *testing.T) {
	virtual(t, func(t *testing.T) {
		check := func(ctx context.Context) ([]driver.Finding, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}
		c := client(t, &scripted{Opener: memlock.New(), remote: true, check: check}, dlock.Config{})
		got := async(func() error { _, err := c.Check(ctx); return err })
		synctest.Wait()
		start := time.Now()
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		if took := time.Since(start); took > 3*second {
			t.Errorf("Close took %v", took)
		}
		wantErr(t, <-got, dlock.ErrClosed)
	})
}

// A waiter that the backend drops again and again gets ErrLockHeldByOther.
func TestPlaceLostUntilTheWaitIsOver(t *testing.T) {
	virtual(t, func(t *testing.T) {
		gone := func(context.Context, driver.Driver, driver.Request) (driver.State, error) {
			return driver.State{Phase: driver.Gone}, nil
		}
		c := client(t, &scripted{Opener: memlock.New(), acquire: gone}, dlock.Config{})
		start := time.Now()
		_, err := c.Acquire(ctx, "k", dlock.WithWait(second))
		wantErr(t, err, dlock.ErrLockHeldByOther)
		if took := time.Since(start); took != second {
			t.Errorf("waited %v of 1s", took)
		}
	})
}

// A context that has ended before the call sends nothing.
func TestDeadContextSendsNothing(t *testing.T) {
	virtual(t, func(t *testing.T) {
		_, faults := faulty()
		c := client(t, faults, dlock.Config{})
		dead, cancel := context.WithCancel(ctx)
		cancel()
		_, err := c.Acquire(dead, "k")
		wantErr(t, err, context.Canceled)
		wantErr(t, c.Lock(dead, "k"), context.Canceled)
		if errors.Is(err, dlock.ErrUnknownOutcome) || faults.Calls(0)+faults.Calls(2) > 0 {
			t.Errorf("%v after %d calls", err, faults.Calls(0)+faults.Calls(2))
		}
	})
}

// The ID, which is the right to release, is in no error and in nothing that an Admin returns.
func TestNoClaimIDIsShown(t *testing.T) {
	store := memlock.New()
	c := client(t, store, dlock.Config{})
	acquire(t, c, "k")
	d, err := store.Open(driver.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	stored, err := d.(driver.Admin).Inspect(ctx, "k")
	if err != nil || len(stored) != 1 || len(stored[0].ID) != 32 {
		t.Fatalf("%v, %v", stored, err)
	}
	_, err = c.TryAcquire(ctx, "k")
	var e *dlock.Error
	if !errors.As(err, &e) || e.Holder == nil {
		t.Fatalf("%+v", err)
	}
	shown := inspect(t, c, "k")[0]
	asJSON, err := json.Marshal(shown)
	if err != nil {
		t.Fatal(err)
	}
	text := fmt.Sprintf("%v %+v %#v %s %v", e, *e.Holder, shown, asJSON, shown.LogValue())
	if strings.Contains(text, stored[0].ID) {
		t.Errorf("the claim ID is in %s", text)
	}
}

// A call that was not answered counts as lost after some time, and a longer lease is trusted again.
func TestUnansweredCallIsForgotten(t *testing.T) {
	virtual(t, func(t *testing.T) {
		blip := true
		renew := func(ctx context.Context, d driver.Driver, r []driver.Ref) ([]driver.State, error) {
			if blip {
				blip = false
				return nil, errNet
			}
			return d.Renew(ctx, r)
		}
		c := client(t, &scripted{Opener: memlock.New(), renew: renew}, dlock.Config{})
		g := acquire(t, c, "k")
		elapse(2 * time.Minute)
		if err := g.Extend(ctx, time.Hour); err != nil || g.Remaining() < 50*time.Minute {
			t.Errorf("%v, %v left", err, g.Remaining())
		}
	})
}

// Queued, in answer to a call that was sent after the grant, is a loss.
func TestQueuedAfterHeldIsALoss(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := memlock.New()
		var late driver.Request
		var d driver.Driver
		b := client(t, &scripted{Opener: store, acquire: func(ctx context.Context, inner driver.Driver, r driver.Request) (driver.State, error) {
			if d == nil {
				late, d = r, inner
				return driver.State{}, errNet
			}
			return inner.Acquire(ctx, r)
		}}, dlock.Config{})
		a := client(t, store, dlock.Config{})
		g := acquire(t, b, "k", dlock.WithTTL(5*second))
		got := async(func() *dlock.Guard { return acquire(t, a, "k") })
		synctest.Wait()
		if _, err := d.Release(ctx, late.Ref); err != nil { // by an operator: nothing is pushed
			t.Fatal(err)
		}
		<-got
		if st, err := d.Acquire(ctx, late); err != nil || st.Phase != driver.Queued {
			t.Fatal(st, err)
		}
		elapse(2 * second)
		ended(t, g, dlock.ErrOwnershipLost)
	})
}

// A release that was refused and then finds nothing reports a loss.
func TestRefusedReleaseThenGone(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := 0
		release := func(ctx context.Context, d driver.Driver, r driver.Ref) (driver.State, error) {
			n++
			if n == 1 {
				_, _ = d.Release(ctx, r) // another client deletes it
				return driver.State{}, driver.Classify(errNet, driver.Transient)
			}
			return d.Release(ctx, r)
		}
		c := client(t, &scripted{Opener: memlock.New(), release: release}, dlock.Config{})
		wantErr(t, acquire(t, c, "k").Unlock(ctx), dlock.ErrOwnershipLost)
	})
}

func TestDoReportsTheDeadline(t *testing.T) {
	virtual(t, func(t *testing.T) {
		c := client(t, memlock.New(), dlock.Config{})
		short, cancel := context.WithTimeout(ctx, second)
		defer cancel()
		err := c.Do(short, "k", func(ctx context.Context) error {
			<-ctx.Done()
			return ctx.Err()
		})
		wantErr(t, err, context.DeadlineExceeded)
		free(t, c, "k")
	})
}

// A lock without renewal is still renewed through its minimum hold.
func TestMinHoldWithoutRenewal(t *testing.T) {
	virtual(t, func(t *testing.T) {
		c := client(t, memlock.New(), dlock.Config{})
		g := acquire(t, c, "k", dlock.WithTTL(10*second), dlock.WithoutRenewal(), dlock.WithMinHold(10*second))
		unlock(t, g)
		elapse(9 * second)
		if len(inspect(t, c, "k")) != 1 {
			t.Error("free before its minimum hold is over")
		}
		elapse(second + time.Millisecond)
		free(t, c, "k")
	})
}

// A recheck, or a backend that fails at once, does not cause a hot loop.
func TestNoHotLoop(t *testing.T) {
	virtual(t, func(t *testing.T) {
		var calls atomic.Int64
		var fails atomic.Bool
		renew := func(ctx context.Context, d driver.Driver, r []driver.Ref) ([]driver.State, error) {
			calls.Add(1)
			if fails.Load() {
				return nil, errNet
			}
			st, err := d.Renew(ctx, r)
			for i := range st {
				st[i].Recheck = 300 * time.Millisecond
			}
			return st, err
		}
		store := memlock.New()
		acquire(t, client(t, store, dlock.Config{}), "k")
		c := client(t, &scripted{Opener: store, renew: renew}, dlock.Config{})
		waited, cancel := context.WithCancel(ctx)
		got := async(func() error { return c.Lock(waited, "k") })
		elapse(10 * second)
		if n := calls.Swap(0); n > 40 {
			t.Errorf("%d renewals in 10s with a recheck of 300ms", n)
		}
		fails.Store(true)
		elapse(10 * second)
		if n := calls.Load(); n > 200 {
			t.Errorf("%d attempts in 10s by one waiter while the backend is down", n)
		}
		cancel()
		wantErr(t, <-got, context.Canceled)
	})
}

// Calls hang until their context ends, then the network is healed at some time: what a call left
// behind is gone within a second.
func TestCleanUpWithinASecondOfHealing(t *testing.T) {
	for after := 100 * time.Millisecond; after < 3*second; after += 70 * time.Millisecond {
		virtual(t, func(t *testing.T) {
			store := memlock.New()
			var healed time.Time // zero: the network works
			hang := func(ctx context.Context) bool {
				if healed.IsZero() || !time.Now().Before(healed) {
					return false
				}
				<-ctx.Done()
				return true
			}
			broken := &scripted{
				Opener: store, remote: true,
				acquire: func(ctx context.Context, d driver.Driver, r driver.Request) (driver.State, error) {
					st, err := d.Acquire(ctx, r) // it arrives; its answer does not
					if hang(ctx) {
						return driver.State{}, errNet
					}
					return st, err
				},
				release: func(ctx context.Context, d driver.Driver, r driver.Ref) (driver.State, error) {
					if hang(ctx) {
						return driver.State{}, errNet
					}
					return d.Release(ctx, r)
				},
			}
			a, b := client(t, broken, dlock.Config{}), client(t, store, dlock.Config{})
			healed = time.Now().Add(after)
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer cancel()
			if _, err := a.Acquire(ctx, "k"); !errors.Is(err, dlock.ErrUnknownOutcome) {
				t.Fatal(err)
			}
			elapse(time.Until(healed) + second)
			if ok, err := b.TryLock(t.Context(), "k"); !ok || err != nil {
				t.Errorf("healed after %v, and the claim is there a second later: %v", after, err)
			}
		})
	}
}

// A hold that has ended when the scheduler wakes for it does not change the alarm. Otherwise each
// of the following short holds would wake the scheduler again, which cost more than the rest of the
// pair.
func TestShortHoldsDoNotWakeTheScheduler(t *testing.T) {
	virtual(t, func(t *testing.T) {
		c := client(t, memlock.New(), dlock.Config{})
		var first time.Duration
		for i := range 5 {
			unlock(t, acquire(t, c, "k"))
			synctest.Wait()
			at, set := c.Alarm()
			if i == 0 {
				first = at
			}
			if !set || at != first {
				t.Fatalf("hold %d: the alarm is at %v (set: %v), and was at %v", i, at, set, first)
			}
			elapse(time.Millisecond)
		}
		elapse(20 * second)
		if at, set := c.Alarm(); set {
			t.Errorf("with nothing to do, the alarm is set to %v", at)
		}
	})
}

// A backend that answers only for a part of each renewal in time keeps all locks: those with the least time are renewed
// first.
func TestRenewalOfTheMostUrgentFirst(t *testing.T) {
	virtual(t, func(t *testing.T) {
		slow := func(ctx context.Context, d driver.Driver, r []driver.Ref) ([]driver.State, error) {
			few := min(len(r), 6)
			states, err := d.Renew(ctx, r[:few])
			elapse(second)
			return append(states, make([]driver.State, len(r)-few)...), err
		}
		c := client(t, &scripted{Opener: memlock.New(), renew: slow}, dlock.Config{DefaultTTL: 12 * second})
		var guards []*dlock.Guard
		for i := range 30 {
			guards = append(guards, acquire(t, c, fmt.Sprint("k", i)))
		}
		elapse(5 * time.Minute)
		for _, g := range guards {
			alive(t, g)
		}
	})
}

// Holders are renewed before waiters, if the backend cannot answer for all of them.
func TestRenewalOfHoldersFirst(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := memlock.New()
		slow := func(ctx context.Context, d driver.Driver, r []driver.Ref) ([]driver.State, error) {
			few := min(len(r), 10)
			states, err := d.Renew(ctx, r[:few])
			elapse(second / 2)
			return append(states, make([]driver.State, len(r)-few)...), err
		}
		c, other := client(t, &scripted{Opener: store, renew: slow}, dlock.Config{DefaultTTL: 3 * second}), client(t, store, dlock.Config{})
		acquire(t, other, "waited for")
		waiting, cancel := context.WithCancel(ctx)
		var waiters sync.WaitGroup
		for range 60 {
			waiters.Go(func() { _, _ = c.Acquire(waiting, "waited for") })
		}
		elapse(second)
		var guards []*dlock.Guard
		for i := range 6 {
			guards = append(guards, acquire(t, c, fmt.Sprint("k", i)))
		}
		elapse(time.Minute)
		for _, g := range guards {
			alive(t, g)
		}
		cancel()
		waiters.Wait()
	})
}
