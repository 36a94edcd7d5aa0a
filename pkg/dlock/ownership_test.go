package dlock_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/faultdriver"
	"github.com/ceyewan/genesis/pkg/dlock/memlock"
)

// Ownership and its end: each of these tests reproduces a defect that gave one lock to two holders.

// noSecondHolder asserts that the next holder gets the key only after g has ended.
func noSecondHolder(t *testing.T, other *dlock.Client, g *dlock.Guard, within time.Duration) {
	t.Helper()
	held := g.Context()
	h, err := other.Acquire(ctx, g.Key(), dlock.WithWait(within))
	if err == nil && held.Err() == nil {
		t.Errorf("another has token %d, and token %d is believed for %v more", h.Token(), g.Token(), g.Remaining())
	}
}

// A renewal with a shorter TTL is in flight when the lock is handed over: it shortens the
// successor's lease as it would have shortened that of its sender.
func TestHandoffKeepsRenewalUnderWay(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := memlock.New()
		renew := func(ctx context.Context, d driver.Driver, r []driver.Ref) ([]driver.State, error) {
			if r[0].TTL == second {
				elapse(100 * time.Millisecond) // in flight
			}
			return d.Renew(ctx, r)
		}
		c := client(t, &scripted{Opener: store, renew: renew}, dlock.Config{LocalBatch: 4, DefaultTTL: time.Minute})
		first := acquire(t, c, "k")
		waiters := queueUp(t, c, ctx, "k", 1)
		for _, ttl := range []time.Duration{second, time.Minute} {
			short, cancel := context.WithTimeout(ctx, time.Millisecond)
			wantErr(t, first.Extend(short, ttl), dlock.ErrUnknownOutcome)
			cancel()
		}
		unlock(t, first)
		noSecondHolder(t, client(t, store, dlock.Config{}), <-waiters[0], 50*second)
	})
}

// A heartbeat of the first waiter arrives long after the lock was granted, handed over
// and extended.
func TestHandoffLateHeartbeat(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store, n := memlock.New(), 0
		renew := func(ctx context.Context, d driver.Driver, r []driver.Ref) ([]driver.State, error) {
			n++
			if n == 1 {
				late := append([]driver.Ref(nil), r...)
				time.AfterFunc(4*second, func() { _, _ = d.Renew(context.Background(), late) })
				<-ctx.Done()
				return nil, ctx.Err()
			}
			return d.Renew(ctx, r)
		}
		other := client(t, store, dlock.Config{})
		holder := acquire(t, other, "k")
		c := client(t, &scripted{Opener: store, renew: renew, remote: true}, dlock.Config{LocalBatch: 4})
		waiters := queueUp(t, c, ctx, "k", 2)
		elapse(1001 * time.Millisecond)
		unlock(t, holder)
		unlock(t, <-waiters[0])
		g := <-waiters[1]
		if err := g.Extend(ctx, time.Hour); err != nil {
			t.Fatal(err)
		}
		noSecondHolder(t, other, g, 10*time.Minute)
	})
}

// An Extend of the former owner ends when the lock is handed over.
func TestHandoffEndsExtend(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := memlock.New()
		hang := func(ctx context.Context, _ driver.Driver, _ []driver.Ref) ([]driver.State, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}
		c := client(t, &scripted{Opener: store, renew: hang, remote: true}, dlock.Config{LocalBatch: 4})
		first := acquire(t, c, "k")
		waiters := queueUp(t, c, ctx, "k", 1)
		extended := async(func() error { return first.Extend(ctx, 10*second) })
		synctest.Wait()
		unlock(t, first)
		g := <-waiters[0]
		wantErr(t, <-extended, dlock.ErrLockNotHeld)
		alive(t, g)
	})
}

// An exclusive Do inside a shared one is refused, as a keyed Lock is.
func TestDoDoesNotUpgrade(t *testing.T) {
	store := memlock.New()
	a, b := client(t, store, dlock.Config{EnableReentrant: true}), client(t, store, dlock.Config{})
	reader := acquire(t, b, "k", dlock.WithShared())
	err := a.Do(ctx, "k", func(ctx context.Context) error {
		shared := a.Do(ctx, "k", func(context.Context) error { return nil }, dlock.WithShared())
		if shared != nil {
			t.Errorf("a shared Do inside: %v", shared)
		}
		return a.Do(ctx, "k", func(context.Context) error {
			t.Error("an exclusive Do ran next to a reader")
			return nil
		})
	}, dlock.WithShared())
	wantErr(t, err, dlock.ErrLockAlreadyHeld)
	alive(t, reader)
}

// Do and Acquire by the owner of a keyed lock do not wait for themselves.
func TestOwnerDoesNotWaitForItself(t *testing.T) {
	virtual(t, func(t *testing.T) {
		for _, reentrant := range []bool{true, false} {
			c := client(t, memlock.New(), dlock.Config{EnableReentrant: reentrant})
			owner := dlock.OwnerContext(ctx)
			lock(t, c, owner, "k")
			var inner context.Context
			err := c.Do(owner, "k", func(ctx context.Context) error {
				inner = ctx
				return ctx.Err()
			})
			if reentrant {
				g, _ := dlock.FromContext(inner)
				if err != nil || g == nil || g.Key() != "k" {
					t.Errorf("Do: %v under %v", err, g)
				}
			} else {
				wantErr(t, err, dlock.ErrLockAlreadyHeld)
			}
			_, err = c.Acquire(owner, "k")
			wantErr(t, err, dlock.ErrLockAlreadyHeld)
			if err := c.Unlock(ctx, "k"); err != nil {
				t.Error(err)
			}
		}
	})
}

// The machine is suspended while a renewal is in flight: the answer counts from before.
func TestSuspendDuringRenewal(t *testing.T) {
	virtual(t, func(t *testing.T) {
		var slept atomic.Int64
		n := 0
		renew := func(ctx context.Context, d driver.Driver, r []driver.Ref) ([]driver.State, error) {
			n++
			if n > 1 {
				return nil, errNet
			}
			st, err := d.Renew(ctx, r)
			slept.Add(int64(15 * second))
			elapse(second)
			return st, err
		}
		clock := dlock.WithSleptClock(func() time.Duration { return time.Duration(slept.Load()) })
		c := client(t, &scripted{Opener: memlock.New(), renew: renew}, dlock.Config{}, clock)
		began := time.Now()
		g := acquire(t, c, "k", dlock.WithTTL(30*second)) // renewed at 10 s; the machine is suspended for 15 of the next 30
		<-g.Done()
		if took := time.Since(began); took > 25*second || n > 40 {
			t.Errorf("the lease ended at 25s, the context at %v, after %d renewals", took, n)
		}
	})
}

// The same for a renewal that is not answered, and for the first attempt.
func TestSuspendDuringUnansweredCall(t *testing.T) {
	virtual(t, func(t *testing.T) {
		var slept atomic.Int64
		acq := func(ctx context.Context, d driver.Driver, r driver.Request) (driver.State, error) {
			st, err := d.Acquire(ctx, r)
			slept.Add(int64(8 * second))
			return st, err
		}
		renew := func(context.Context, driver.Driver, []driver.Ref) ([]driver.State, error) { return nil, errNet }
		clock := dlock.WithSleptClock(func() time.Duration { return time.Duration(slept.Load()) })
		c := client(t, &scripted{Opener: memlock.New(), acquire: acq, renew: renew}, dlock.Config{}, clock)
		began := time.Now()
		g := acquire(t, c, "k", dlock.WithTTL(10*second))
		<-g.Done()
		if took := time.Since(began); took > 2*second {
			t.Errorf("8 of 10 s were slept, and the context ended after %v", took)
		}
	})
}

// Close ends every context before it releases anything, even while cleanup runs.
func TestCloseEndsContextsDuringCleanup(t *testing.T) {
	virtual(t, func(t *testing.T) {
		done := map[string]<-chan struct{}{}
		var early atomic.Int64
		release := func(ctx context.Context, d driver.Driver, r driver.Ref) (driver.State, error) {
			if strings.HasPrefix(r.Key, "busy") {
				return driver.State{}, errNet
			}
			select {
			case <-done[r.Key]:
			default:
				early.Add(1)
			}
			return d.Release(ctx, r)
		}
		c := client(t, &scripted{Opener: memlock.New(), release: release}, dlock.Config{RetryInterval: time.Millisecond})
		for i := range 2000 {
			g := acquire(t, c, fmt.Sprint(i))
			done[g.Key()] = g.Done()
		}
		for i := range 64 {
			g := acquire(t, c, fmt.Sprint("busy", i))
			short, cancel := context.WithTimeout(ctx, time.Millisecond)
			_ = g.Unlock(short)
			cancel()
		}
		wantErr(t, c.Close(), dlock.ErrUnknownOutcome)
		if n := early.Load(); n > 0 {
			t.Errorf("%d of 2000 were released while their contexts lived", n)
		}
	})
}

// One failed heartbeat does not lose the place in the queue, for any pause after an error.
func TestHeartbeatIsRepeatedInTime(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store, faults := faulty()
		holder := acquire(t, client(t, store, dlock.Config{}), "k")
		c := client(t, faults, dlock.Config{RetryInterval: 10 * second})
		first := async(func() *dlock.Guard { return acquire(t, c, "k") })
		synctest.Wait()
		faults.Add(faultdriver.Rule{Op: faultdriver.Renew, Fault: faultdriver.Fail, Times: 1})
		elapse(second / 2)
		other := client(t, store, dlock.Config{})
		behind := async(func() *dlock.Guard { return acquire(t, other, "k") })
		elapse(8 * second)
		unlock(t, holder)
		select {
		case <-behind:
			t.Error("one failed heartbeat cost the place in the queue")
		case g := <-first:
			unlock(t, g)
			unlock(t, <-behind)
		}
	})
}

// A hint for this lock or for all makes the Client verify a lock without renewal, and does not
// extend it. If the lock is gone, that is a loss at once.
func TestHintDoesNotRenewFixed(t *testing.T) {
	for n := range 4 {
		evict, ofAll := n%2 == 0, n < 2
		virtual(t, func(t *testing.T) {
			store, events := memlock.New(), make(chan driver.Event, 1)
			var id string
			c := client(t, &scripted{Opener: store, events: events, acquire: func(ctx context.Context, d driver.Driver, r driver.Request) (driver.State, error) {
				id = r.ID
				return d.Acquire(ctx, r)
			}}, dlock.Config{})
			began := time.Now()
			g := acquire(t, c, "k", dlock.WithTTL(10*second), dlock.WithoutRenewal())
			hint := driver.Event{Key: "k", ID: id}
			if ofAll { // others may have been lost
				hint = driver.Event{}
			}
			elapse(5 * second)
			for range 50 { // any number of times
				if evict {
					break
				}
				events <- hint
				elapse(time.Millisecond)
			}
			if evict {
				a, _ := client(t, store, dlock.Config{}).Admin()
				if err := a.Evict(ctx, "k", g.Token()); err != nil {
					t.Fatal(err)
				}
			}
			events <- hint
			synctest.Wait()
			if evict {
				ended(t, g, dlock.ErrOwnershipLost)
				return
			}
			alive(t, g)
			<-g.Done()
			if took := time.Since(began); took > 10*second || took < 9*second {
				t.Errorf("a lock of 10s without renewal ended after %v", took)
			}
		})
	}
}

// A held lock without local waiters needs no goroutine.
func TestHandoffNeedsNoGoroutine(t *testing.T) {
	virtual(t, func(t *testing.T) {
		c := client(t, memlock.New(), dlock.Config{LocalBatch: 8})
		before := runtime.NumGoroutine()
		var guards []*dlock.Guard
		for i := range 1000 {
			guards = append(guards, acquire(t, c, fmt.Sprint(i)))
		}
		synctest.Wait()
		if n := runtime.NumGoroutine() - before; n > 10 {
			t.Errorf("%d goroutines for 1000 held locks", n)
		}
		for _, g := range guards {
			unlock(t, g)
		}
		if n := c.Entries(); n > 0 {
			t.Errorf("%d entries are left", n)
		}
	})
}

// Callers that wait together through LocalBatch get their share next to a Client without it.
func TestHandoffShare(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := memlock.New()
		clients := []*dlock.Client{client(t, store, dlock.Config{LocalBatch: 8}), client(t, store, dlock.Config{})}
		var n [2]atomic.Int64
		stop, cancel := context.WithTimeout(ctx, 20*second)
		defer cancel()
		done := make(chan struct{}, 32)
		for i, c := range clients {
			for range 16 {
				go func() {
					for {
						g, err := c.Acquire(stop, "k")
						if err != nil {
							break
						}
						elapse(10 * time.Millisecond)
						n[i].Add(1)
						_ = g.Unlock(ctx)
					}
					done <- struct{}{}
				}()
			}
		}
		for range 32 {
			<-done
		}
		if n[0].Load()*3 < n[1].Load() || n[1].Load() < n[0].Load() {
			t.Errorf("16 goroutines each: with LocalBatch %d acquisitions, without %d", n[0].Load(), n[1].Load())
		}
	})
}

// A strict order of arrival and local handoffs contradict each other.
func TestRequireFairRefusesLocalBatch(t *testing.T) {
	_, err := dlock.New(&dlock.Config{RequireFair: true, LocalBatch: 100}, dlock.WithBackend(memlock.New()))
	wantErr(t, err, dlock.ErrInvalidConfig)
}

// Calling Context while the lock is unlocked is not a race.
func TestContextDuringUnlock(t *testing.T) {
	o := observe(t)
	c := o.client(t, memlock.New(), dlock.Config{})
	for range 500 {
		g := acquire(t, c, "k")
		done := async(func() error { return g.Unlock(ctx) })
		<-g.Context().Done()
		if err := <-done; err != nil && !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
	}
}

// A push that arrives while its claim is being released is not treated as an unknown grant: a
// second release would make Unlock report a loss.
func TestPushDuringRelease(t *testing.T) {
	virtual(t, func(t *testing.T) {
		events, releases := make(chan driver.Event), 0
		release := func(ctx context.Context, d driver.Driver, r driver.Ref) (driver.State, error) {
			releases++
			for _, st := range []driver.State{{Phase: driver.Held, Token: 1}, {Phase: driver.Gone}, {}} {
				events <- driver.Event{Key: r.Key, ID: r.ID, State: st}
				elapse(time.Millisecond) // it is dispatched
			}
			elapse(second) // all effects of the pushes are done by then
			return d.Release(ctx, r)
		}
		c := client(t, &scripted{Opener: memlock.New(), events: events, release: release}, dlock.Config{})
		unlock(t, acquire(t, c, "k"))
		if releases != 1 {
			t.Errorf("%d releases", releases)
		}
		if n := c.Entries(); n != 0 {
			t.Errorf("%d entries are left", n)
		}
	})
}

// A hint that arrives before the claim's first answer is not lost: the answer may be older than the
// hint. Neither is an event without an ID, in whose place there may have been one.
func TestHintBeforeTheAnswer(t *testing.T) {
	t.Run("of the claim", func(t *testing.T) {
		hintBeforeTheAnswer(t, func(r driver.Request) driver.Event { return driver.Event{Key: r.Key, ID: r.ID} })
	})
	t.Run("of all", func(t *testing.T) {
		hintBeforeTheAnswer(t, func(driver.Request) driver.Event { return driver.Event{} })
	})
}

func hintBeforeTheAnswer(t *testing.T, hint func(driver.Request) driver.Event) {
	virtual(t, func(t *testing.T) {
		store, events := memlock.New(), make(chan driver.Event)
		other := client(t, store, dlock.Config{})
		holder := acquire(t, other, "k")
		acq := func(ctx context.Context, d driver.Driver, r driver.Request) (driver.State, error) {
			st, err := d.Acquire(ctx, r)
			unlock(t, holder)
			events <- hint(r)
			elapse(time.Millisecond) // it is dispatched
			return st, err
		}
		c := client(t, &scripted{Opener: store, events: events, acquire: acq}, dlock.Config{})
		began := time.Now()
		g := acquire(t, c, "k")
		if took := time.Since(began); took > 10*time.Millisecond {
			t.Errorf("the hint was lost: granted after %v", took)
		}
		if claims := inspect(t, other, "k"); len(claims) != 1 || claims[0].Token != g.Token() {
			t.Errorf("the hint was taken for a grant: token %d, claims %v", g.Token(), claims)
		}
	})
}

// A grant whose end was lost before the answer arrived, or the push of which came before that end, is verified at once.
func TestLostEventsBeforeTheAnswer(t *testing.T) {
	for name, options := range map[string][]dlock.LockOption{"renewed": nil, "not to be renewed": {dlock.WithoutRenewal()}} {
		t.Run(name, func(t *testing.T) { virtual(t, func(t *testing.T) { lostEnd(t, options...) }) })
	}
	t.Run("pushed", func(t *testing.T) { virtual(t, lostEndOfAPush) })
}

func lostEnd(t *testing.T, options ...dlock.LockOption) {
	store, events := memlock.New(), make(chan driver.Event)
	other := client(t, store, dlock.Config{})
	var next *dlock.Guard
	acq := func(ctx context.Context, d driver.Driver, r driver.Request) (driver.State, error) {
		st, err := d.Acquire(ctx, r)
		next = evict(t, other, "k")
		events <- driver.Event{}
		elapse(time.Millisecond) // it is dispatched
		return st, err
	}
	g := acquire(t, client(t, &scripted{Opener: store, events: events, acquire: acq}, dlock.Config{}), "k", options...)
	began := time.Now()
	<-g.Done()
	if took := time.Since(began); took > 10*time.Millisecond {
		t.Errorf("the holder learned of its loss after %v", took)
	}
	unlock(t, next)
}

func lostEndOfAPush(t *testing.T) {
	store, events := memlock.New(), make(chan driver.Event)
	other := client(t, store, dlock.Config{})
	holder := acquire(t, other, "k")
	var next *dlock.Guard
	acq := func(ctx context.Context, d driver.Driver, r driver.Request) (driver.State, error) {
		st, err := d.Acquire(ctx, r)
		unlock(t, holder)
		events <- driver.Event{Key: r.Key, ID: r.ID, State: driver.State{Phase: driver.Held, Token: inspect(t, other, "k")[0].Token}}
		elapse(time.Millisecond) // it is dispatched
		next = evict(t, other, "k")
		events <- driver.Event{}
		elapse(time.Millisecond) // it is dispatched
		return st, err
	}
	first := true
	c := client(t, &scripted{Opener: store, events: events, acquire: func(ctx context.Context, d driver.Driver, r driver.Request) (driver.State, error) {
		if first {
			first = false
			return acq(ctx, d, r)
		}
		return d.Acquire(ctx, r)
	}}, dlock.Config{})
	got := async(func() *dlock.Guard { return acquire(t, c, "k") })
	elapse(second / 2)
	select {
	case g := <-got:
		t.Errorf("two have the lock, with tokens %d and %d", g.Token(), next.Token())
		return
	default:
	}
	unlock(t, next)
	unlock(t, <-got)
}

// evict takes a lock away from its holder, and returns the lock that another gets.
func evict(t *testing.T, c *dlock.Client, key string) *dlock.Guard {
	t.Helper()
	a, _ := c.Admin()
	if err := a.Evict(ctx, key, inspect(t, c, key)[0].Token); err != nil {
		t.Fatal(err)
	}
	return acquire(t, c, key)
}
