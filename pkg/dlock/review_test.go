package dlock_test

import (
	"context"
	"errors"
	"log/slog"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ceyewan/genesis/pkg/clog"
	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/faultdriver"
	"github.com/ceyewan/genesis/pkg/dlock/memlock"
)

// Defects that a review of the engine found.

// A renewal that shortens the lease counts from when it is sent: the machine may be suspended
// before it is answered, and the timeout of the attempt does not advance meanwhile.
func TestSuspendWhileTheLeaseIsShortened(t *testing.T) {
	virtual(t, func(t *testing.T) {
		var slept atomic.Int64
		renew := func(ctx context.Context, d driver.Driver, r []driver.Ref) ([]driver.State, error) {
			st, err := d.Renew(ctx, r)
			if r[0].TTL == 5*second {
				slept.Add(int64(6 * second))
				elapse(100 * time.Millisecond) // the answer is delayed
			}
			return st, err
		}
		clock := dlock.WithSleptClock(func() time.Duration { return time.Duration(slept.Load()) })
		c := client(t, &scripted{Opener: memlock.New(), renew: renew, remote: true}, dlock.Config{}, clock)
		g := acquire(t, c, "k", dlock.WithTTL(time.Minute))
		extended := async(func() error { return g.Extend(ctx, 5*second) })
		elapse(50 * time.Millisecond)
		if left := g.Remaining(); left > 0 {
			t.Errorf("6s of a lease of 5s were slept, and %v are left", left)
		}
		wantErr(t, <-extended, dlock.ErrOwnershipLost)
	})
}

// A lock is handed over only after the context of its former holder has ended.
func TestHandoffEndsTheContextFirst(t *testing.T) {
	c := client(t, memlock.New(), dlock.Config{LocalBatch: 64})
	var last atomic.Pointer[dlock.Guard]
	var early atomic.Int64
	done := make(chan struct{}, 8)
	for range cap(done) {
		go func() {
			for range times(300, 20_000) {
				g, err := c.Acquire(ctx, "k")
				if err != nil {
					t.Error(err)
					break
				}
				if former := last.Load(); former != nil && former.Context().Err() == nil {
					early.Add(1)
				}
				_ = g.Context()
				last.Store(g)
				_ = g.Unlock(ctx)
			}
			done <- struct{}{}
		}()
	}
	for range cap(done) {
		<-done
	}
	if n := early.Load(); n > 0 {
		t.Errorf("%d holders began while the context of the former one lived", n)
	}
}

// With LocalBatch, a backend that does not answer is not reported as a lock that another holds,
// however the wait ends.
func TestHandoffReportsASilentBackend(t *testing.T) {
	for _, batch := range []int{0, 8} {
		virtual(t, func(t *testing.T) {
			_, faults := faulty(faultdriver.Rule{Op: faultdriver.Acquire, Fault: faultdriver.LoseRequest, Hang: true})
			c := client(t, faults, dlock.Config{LocalBatch: batch})
			_, err := c.Acquire(ctx, "k", dlock.WithWait(second/2))
			wantErr(t, err, dlock.ErrUnknownOutcome)
			if errors.Is(err, dlock.ErrLockHeldByOther) {
				t.Errorf("LocalBatch %d: %v", batch, err)
			}
			for _, wait := range []time.Duration{second / 2, 5 * second} {
				short, cancel := context.WithTimeout(ctx, wait)
				_, err = c.Acquire(short, "other")
				cancel()
				wantErr(t, err, dlock.ErrUnknownOutcome, context.DeadlineExceeded)
			}
		})
	}
}

// blockingHandler blocks at one message.
type blockingHandler struct {
	at   string
	gate chan struct{}
}

func (blockingHandler) Enabled(context.Context, slog.Level) bool { return true }
func (b blockingHandler) Handle(_ context.Context, r slog.Record) error {
	if r.Message == b.at {
		<-b.gate
	}
	return nil
}
func (b blockingHandler) WithAttrs([]slog.Attr) slog.Handler { return b }
func (b blockingHandler) WithGroup(string) slog.Handler      { return b }

// An eviction whose log record blocks does not block Close.
func TestCloseDoesNotWaitForTheLogOfAnEviction(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store, gate := memlock.New(), make(chan struct{})
		g := acquire(t, client(t, store, dlock.Config{}), "k")
		c := client(t, store, dlock.Config{}, dlock.WithLogger(clog.FromSlog(slog.New(blockingHandler{"lock evicted", gate}))))
		a, _ := c.Admin()
		evicted := async(func() error { return a.Evict(ctx, "k", g.Token()) })
		synctest.Wait()
		began := time.Now()
		if err := c.Close(); err != nil || time.Since(began) > 3*second {
			t.Errorf("Close: %v after %v", err, time.Since(began))
		}
		close(gate)
		if err := <-evicted; err != nil {
			t.Error(err)
		}
	})
}

// A lock that is unlocked within its minimum hold is renewed until that ends, even if no answer
// comes for longer than its validity, and is then released.
func TestMinHoldOutlastsLostAnswers(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store, faults := faulty()
		c, other := client(t, faults, dlock.Config{}), client(t, store, dlock.Config{})
		g := acquire(t, c, "k", dlock.WithTTL(time.Minute), dlock.WithMinHold(70*second))
		unlock(t, g)
		began := time.Now()
		faults.Add(faultdriver.Rule{Op: faultdriver.Renew, Fault: faultdriver.LoseAnswer})
		elapse(58 * second)
		faults.Clear()
		acquire(t, other, "k")
		if took := time.Since(began); took < 70*second || took > 75*second {
			t.Errorf("a least hold of 70s took %v", took)
		}
	})
}

// The same for a lock without renewal that was being verified when it was unlocked.
func TestMinHoldAfterAHint(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store, events := memlock.New(), make(chan driver.Event)
		var id string
		acq := func(ctx context.Context, d driver.Driver, r driver.Request) (driver.State, error) {
			id = r.ID
			return d.Acquire(ctx, r)
		}
		renew := func(ctx context.Context, d driver.Driver, r []driver.Ref) ([]driver.State, error) {
			st, err := d.Renew(ctx, r)
			elapse(100 * time.Millisecond)
			return st, err
		}
		c := client(t, &scripted{Opener: store, events: events, acquire: acq, renew: renew}, dlock.Config{})
		began := time.Now()
		g := acquire(t, c, "k", dlock.WithTTL(time.Minute), dlock.WithoutRenewal(), dlock.WithMinHold(time.Minute))
		elapse(second)
		events <- driver.Event{Key: "k", ID: id}
		elapse(50 * time.Millisecond)
		unlock(t, g)
		acquire(t, client(t, store, dlock.Config{}), "k")
		if took := time.Since(began); took < time.Minute {
			t.Errorf("a least hold of a minute took %v", took)
		}
	})
}

// callsBack is a context whose values are looked up by the user's code.
type callsBack struct {
	context.Context
	call func()
}

func (c callsBack) Value(key any) any {
	c.call()
	return c.Context.Value(key)
}

// The values of the user's context are not read while the Client's mutex is held.
func TestContextValueMayCallBack(t *testing.T) {
	virtual(t, func(t *testing.T) {
		c := client(t, memlock.New(), dlock.Config{EnableReentrant: true})
		owner := callsBack{dlock.OwnerContext(ctx), func() { _, _ = c.Held("k") }}
		lock(t, c, owner, "k")
		lock(t, c, owner, "k")
		if err := c.Do(owner, "k", func(context.Context) error { return nil }); err != nil {
			t.Error(err)
		}
		for range 2 {
			if err := c.Unlock(owner, "k"); err != nil {
				t.Error(err)
			}
		}
	})
}

// A minimum hold that ends early is logged once, because another process may run the job again. The
// Client keeps nothing of it.
func TestMinHoldCutShortIsLogged(t *testing.T) {
	virtual(t, func(t *testing.T) {
		o, store := observe(t), memlock.New()
		c := o.client(t, store, dlock.Config{})
		g := acquire(t, c, "k", dlock.WithTTL(3*second), dlock.WithMinHold(time.Hour))
		unlock(t, g)
		a, _ := client(t, store, dlock.Config{}).Admin()
		if err := a.Evict(ctx, "k", g.Token()); err != nil {
			t.Fatal(err)
		}
		elapse(10 * second)
		if n := strings.Count(strings.Join(o.lines(), "\n"), "minimum hold cut short"); n != 1 {
			t.Errorf("%d lines in %q", n, o.lines())
		}
		if n := c.Entries(); n != 0 {
			t.Errorf("%d entries are left", n)
		}
	})
}

// children derives contexts, as a server does for each request, so that ending them all takes some
// time.
func children(t *testing.T, parent context.Context, n int) []context.Context { //nolint:revive // the test comes first
	t.Helper()
	var all []context.Context
	for range n {
		child, cancel := context.WithCancel(parent)
		t.Cleanup(cancel)
		all = append(all, child)
	}
	return all
}

// Close does not release a lock that is being handed over before the context of the former holder,
// and all contexts derived from it, have ended.
func TestCloseDuringAHandoff(t *testing.T) {
	virtual(t, func(t *testing.T) {
		for range times(5, 60) {
			store := memlock.New()
			var watched atomic.Pointer[[]context.Context]
			var early atomic.Int64
			release := func(ctx context.Context, d driver.Driver, r driver.Ref) (driver.State, error) {
				if all := watched.Load(); all != nil {
					for _, child := range *all {
						if child.Err() == nil {
							early.Add(1)
						}
					}
				}
				return d.Release(ctx, r)
			}
			c := client(t, &scripted{Opener: store, release: release}, dlock.Config{LocalBatch: 8})
			first := acquire(t, c, "k")
			next := async(func() error {
				g, err := c.Acquire(ctx, "k")
				if err == nil {
					_ = g
				}
				return err
			})
			eventually(t, "the second waits", func() bool { return c.LocalWaiters() == 1 })
			all := children(t, first.Context(), 4000)
			watched.Store(&all)
			unlocked := async(func() error { return first.Unlock(ctx) })
			for c.LocalWaiters() > 0 { // zero as soon as it is handed over
				runtime.Gosched()
			}
			if err := c.Close(); err != nil {
				t.Fatal(err)
			}
			<-unlocked
			<-next
			if n := early.Load(); n > 0 {
				t.Fatalf("released while %d contexts of the former holder lived", n)
			}
		}
	})
}

// The context of a Guard that has ended has ended too, for any number of concurrent callers.
func TestContextAfterUnlockIsOver(t *testing.T) {
	c := client(t, memlock.New(), dlock.Config{})
	for range times(2000, 200_000) {
		g := acquire(t, c, "k")
		unlock(t, g)
		living := make(chan bool, 4)
		for range cap(living) {
			go func() { living <- g.Context().Err() == nil }()
		}
		for range cap(living) {
			if <-living {
				t.Fatal("the context of an unlocked Guard lives")
			}
		}
	}
}

// A repeated push does not shorten the time that a holder has to stop after a loss.
func TestPushAfterALoss(t *testing.T) {
	virtual(t, func(t *testing.T) {
		events, released := make(chan driver.Event), 0
		var id string
		acq := func(ctx context.Context, d driver.Driver, r driver.Request) (driver.State, error) {
			id = r.ID
			return d.Acquire(ctx, r)
		}
		release := func(ctx context.Context, d driver.Driver, r driver.Ref) (driver.State, error) {
			released++
			return d.Release(ctx, r)
		}
		c := client(t, &scripted{Opener: memlock.New(), events: events, acquire: acq, release: release}, dlock.Config{})
		g := acquire(t, c, "k", dlock.WithTTL(time.Minute), dlock.WithMaxHold(second))
		elapse(1100 * time.Millisecond)
		ended(t, g, dlock.ErrOwnershipLost)
		events <- driver.Event{Key: "k", ID: id, State: driver.State{Phase: driver.Held, Token: g.Token()}}
		elapse(second)
		if released > 0 {
			t.Error("released before Unlock and before its margin has passed")
		}
	})
}

// A renewal that was sent after the grant and is answered with Queued ends the hold: a failover has
// lost the grant.
func TestQueuedAfterTheGrantIsALoss(t *testing.T) {
	store := memlock.New()
	var renewals atomic.Int64
	taken := make(chan struct{})
	renew := func(context.Context, driver.Driver, []driver.Ref) ([]driver.State, error) {
		renewals.Add(1)
		<-taken // it is sent before its caller has the lock, and answered after
		return []driver.State{{Phase: driver.Queued, Until: time.Now().Add(3 * second)}}, nil
	}
	holder := acquire(t, client(t, store, dlock.Config{}), "k")
	c := client(t, &scripted{Opener: store, renew: renew, remote: true}, dlock.Config{})
	got := async(func() *dlock.Guard {
		return acquire(t, c, "k", dlock.WithoutRenewal(), dlock.WithTTL(time.Minute))
	})
	eventually(t, "it waits", func() bool { return c.Queued() == 1 })
	unlock(t, holder)
	g := <-got
	close(taken)
	<-g.Done()
	wantErr(t, context.Cause(g.Context()), dlock.ErrOwnershipLost)
	if n := renewals.Load(); n != 1 {
		t.Errorf("it took %d answers", n)
	}
}

// A hint does not replace a renewal that a lock without renewal still needs: after its grant, or
// for an Extend.
func TestHintDuringAnExtend(t *testing.T) {
	virtual(t, func(t *testing.T) {
		events, failures := make(chan driver.Event), 1
		var id string
		acq := func(ctx context.Context, d driver.Driver, r driver.Request) (driver.State, error) {
			id = r.ID
			return d.Acquire(ctx, r)
		}
		renew := func(ctx context.Context, d driver.Driver, r []driver.Ref) ([]driver.State, error) {
			if failures > 0 {
				failures--
				return nil, errNet
			}
			return d.Renew(ctx, r)
		}
		c := client(t, &scripted{Opener: memlock.New(), events: events, acquire: acq, renew: renew, remote: true}, dlock.Config{})
		g := acquire(t, c, "k", dlock.WithoutRenewal(), dlock.WithTTL(10*second))
		extended := async(func() error { return g.Extend(ctx, time.Hour) })
		elapse(5 * time.Millisecond)
		events <- driver.Event{Key: "k", ID: id}
		if err := <-extended; err != nil || g.Remaining() < 9*second {
			t.Errorf("%v, %v left", err, g.Remaining())
		}
	})
}

// A call that does not wait and is ended by Close gets ErrClosed.
func TestCloseEndsATry(t *testing.T) {
	virtual(t, func(t *testing.T) {
		hang := func(ctx context.Context, _ driver.Driver, _ driver.Request) (driver.State, error) {
			<-ctx.Done()
			return driver.State{}, ctx.Err()
		}
		c := client(t, &scripted{Opener: memlock.New(), acquire: hang, remote: true}, dlock.Config{})
		got := async(func() error { _, err := c.TryAcquire(ctx, "k"); return err })
		synctest.Wait()
		_ = c.Close()
		err := <-got
		wantErr(t, err, dlock.ErrClosed)
		if strings.Contains(err.Error(), "no answer") {
			t.Error(err)
		}
	})
}

// A lock that is unlocked within its minimum hold, and whose key was granted again meanwhile, may
// still be stored, for instance on some of several servers. It is released.
func TestMinHoldOfAKeyGrantedAgain(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store, faults := faulty(faultdriver.Rule{Op: faultdriver.Push, Fault: faultdriver.LosePush})
		c := client(t, faults, dlock.Config{})
		g := acquire(t, c, "k", dlock.WithTTL(time.Hour), dlock.WithMinHold(time.Hour))
		unlock(t, g)
		a, err := client(t, store, dlock.Config{}).Admin()
		if err != nil {
			t.Fatal(err)
		}
		if err := a.Evict(ctx, "k", g.Token()); err != nil {
			t.Fatal(err)
		}
		next := acquire(t, c, "k")
		synctest.Wait()
		if n := faults.Calls(faultdriver.Release); n != 1 {
			t.Errorf("%d releases of the first claim, want 1", n)
		}
		unlock(t, next)
	})
}
