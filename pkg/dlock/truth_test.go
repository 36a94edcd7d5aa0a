package dlock_test

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/faultdriver"
	"github.com/ceyewan/genesis/pkg/dlock/memlock"
)

// Errors and metrics report what happened.

// An attempt that was not answered leaves the outcome unknown, regardless of later attempts.
func TestUnknownOutcomeSticks(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store, faults := faulty(
			faultdriver.Rule{Op: faultdriver.Acquire, Fault: faultdriver.LoseAnswer, Times: 1},
			faultdriver.Rule{Op: faultdriver.Acquire, Fault: faultdriver.Fail, Skip: 1},
			faultdriver.Rule{Op: faultdriver.Release, Fault: faultdriver.Fail},
		)
		_, err := client(t, faults, dlock.Config{MaxRetries: 2}).Acquire(ctx, "k")
		if claims := inspect(t, client(t, store, dlock.Config{}), "k"); len(claims) != 1 {
			t.Fatalf("the backend has %v", claims)
		}
		wantErr(t, err, dlock.ErrUnknownOutcome)
	})
}

// A backend that fails is not reported as a lock that another holds.
func TestDeadBackendIsNotHeldByOther(t *testing.T) {
	for _, batch := range []int{0, 8} {
		virtual(t, func(t *testing.T) {
			_, faults := faulty(faultdriver.Rule{Op: faultdriver.Acquire, Fault: faultdriver.Fail})
			c := client(t, faults, dlock.Config{LocalBatch: batch})
			_, err := c.Acquire(ctx, "k", dlock.WithWait(second))
			if err == nil || errors.Is(err, dlock.ErrLockHeldByOther) || !strings.Contains(err.Error(), "injected fault") {
				t.Errorf("LocalBatch %d: %v", batch, err)
			}
		})
	}
}

// The same for a backend that stops answering while a claim waits.
func TestSilentBackendIsNotHeldByOther(t *testing.T) {
	for _, batch := range []int{0, 8} {
		virtual(t, func(t *testing.T) {
			store, faults := faulty()
			holder := acquire(t, client(t, store, dlock.Config{}), "k")
			c := client(t, faults, dlock.Config{LocalBatch: batch})
			got := async(func() error { _, err := c.Acquire(ctx, "k", dlock.WithWait(20*second)); return err })
			elapse(second / 2)
			faults.Add(faultdriver.Rule{Op: faultdriver.Renew, Fault: faultdriver.LoseRequest})
			faults.Add(faultdriver.Rule{Op: faultdriver.Push, Fault: faultdriver.LosePush})
			unlock(t, holder)
			err := <-got
			wantErr(t, err, dlock.ErrUnknownOutcome)
			if errors.Is(err, dlock.ErrLockHeldByOther) {
				t.Errorf("LocalBatch %d: the key has been free for 19s: %v", batch, err)
			}
		})
	}
}

// Close returns the same error to every waiter.
func TestCloseAnswersHandoff(t *testing.T) {
	for range 100 {
		virtual(t, func(t *testing.T) {
			hang := func(ctx context.Context, _ driver.Driver, _ driver.Request) (driver.State, error) {
				<-ctx.Done()
				return driver.State{}, ctx.Err()
			}
			c := client(t, &scripted{Opener: memlock.New(), acquire: hang, remote: true}, dlock.Config{LocalBatch: 8})
			got := async(func() error { _, err := c.Acquire(ctx, "k"); return err })
			elapse(time.Millisecond)
			_ = async(c.Close)
			err := <-got
			if want := `dlock: acquire "k": client is closed`; err == nil || err.Error() != want {
				t.Fatalf("%v, want %s", err, want)
			}
		})
	}
}

// A loss that Unlock detects is counted and logged, and the hold is not recorded as released.
func TestLossFoundByUnlock(t *testing.T) {
	virtual(t, func(t *testing.T) {
		o := observe(t)
		store, faults := faulty(faultdriver.Rule{Op: faultdriver.Push, Fault: faultdriver.LosePush})
		g := acquire(t, o.client(t, faults, dlock.Config{}), "k")
		a, _ := client(t, store, dlock.Config{}).Admin()
		if err := a.Evict(ctx, "k", g.Token()); err != nil {
			t.Fatal(err)
		}
		wantErr(t, g.Unlock(ctx), dlock.ErrOwnershipLost)
		taken, _ := o.read(t, "dlock.losses", "reason", "taken_away")
		released, _ := o.read(t, "dlock.hold.duration", "end", "released")
		lost, _ := o.read(t, "dlock.hold.duration", "end", "ownership_lost")
		if log := strings.Join(o.lines(), "\n"); taken != 1 || released != 0 || lost != 1 || !strings.Contains(log, "ownership lost") {
			t.Errorf("losses %d, holds released %d, lost %d\n%s", taken, released, lost, log)
		}
	})
}

// A lock that is handed over between goroutines is measured like any other.
func TestHandoffFigures(t *testing.T) {
	virtual(t, func(t *testing.T) {
		o := observe(t)
		store := memlock.New()
		c := o.client(t, store, dlock.Config{LocalBatch: 100})
		other := acquire(t, client(t, store, dlock.Config{}), "k")
		got := make(chan *dlock.Guard, 6)
		for range 6 {
			go func() { got <- acquire(t, c, "k") }()
		}
		eventually(t, "they wait", func() bool { n, _ := o.read(t, "dlock.waiting", "", ""); return n == 6 })
		unlock(t, other) // all of them waited when the turn began, so the time limit does not apply
		for range 6 {
			unlock(t, <-got)
		}
		figures := map[string]int64{}
		figures["acquired"], _ = o.read(t, "dlock.acquisitions", "result", "acquired")
		figures["released"], _ = o.read(t, "dlock.releases", "result", "released")
		figures["holds"], _ = o.read(t, "dlock.hold.duration", "end", "released")
		figures["handed over"], _ = o.read(t, "dlock.handoffs", "", "")
		figures["held"], _ = o.read(t, "dlock.held", "", "")
		for name, want := range map[string]int64{"acquired": 6, "released": 6, "holds": 6, "handed over": 6, "held": 0} {
			if figures[name] != want {
				t.Errorf("%s %d, want %d", name, figures[name], want)
			}
		}
	})
}

// WithWait leaves nothing behind.
func TestWaitLeavesNoContext(t *testing.T) {
	virtual(t, func(t *testing.T) {
		heap := func() int64 {
			runtime.GC()
			runtime.GC()
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			return int64(m.HeapAlloc)
		}
		_, faults := faulty()
		c := client(t, faults, dlock.Config{})
		unlock(t, acquire(t, c, "k"))
		before := heap()
		for range 5000 { // each attempt has a context of its own: it would take longer than the call waits
			unlock(t, acquire(t, c, "k", dlock.WithWait(1900*time.Millisecond)))
		}
		if grown := heap() - before; grown > 256<<10 {
			t.Errorf("5000 pairs leave %d KiB behind", grown>>10)
		}
	})
}

// The error of a claim that is not answered has a cause, even if the backend gave none.
func TestBlankAnswerHasACause(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store, faults := faulty(faultdriver.Rule{Op: faultdriver.Renew, Fault: faultdriver.Blank})
		acquire(t, client(t, store, dlock.Config{}), "k")
		_, err := client(t, faults, dlock.Config{MaxRetries: 1}).Acquire(ctx, "k")
		if err == nil || strings.Contains(err.Error(), "%!") || !strings.Contains(err.Error(), "no answer") {
			t.Error(err)
		}
	})
}

// An answer to Acquire without a state counts as a lost one: the call is repeated, and gets the
// claim that was stored meanwhile.
func TestBlankAnswerIsAskedAgain(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store, attempts := memlock.New(), 0
		s := &scripted{Opener: store, remote: true}
		s.acquire = func(ctx context.Context, d driver.Driver, r driver.Request) (driver.State, error) {
			attempts++
			st, err := d.Acquire(ctx, r)
			if attempts == 1 {
				return driver.State{}, nil
			}
			return st, err
		}
		c := client(t, s, dlock.Config{})
		unlock(t, acquire(t, c, "k", dlock.WithWait(10*second)))
		if attempts != 2 {
			t.Errorf("%d attempts", attempts)
		}
		attempts = 0
		_, err := c.TryAcquire(ctx, "k")
		wantErr(t, err, dlock.ErrUnknownOutcome)
		if !strings.Contains(err.Error(), "no answer") {
			t.Error(err)
		}
		elapse(second)
		free(t, client(t, store, dlock.Config{}), "k")
	})
}

// slowInspect is a backend that never returns the holder of a key.
type slowInspect struct{ driver.Opener }

type slowAdmin struct {
	driver.Driver
	driver.Admin
}

func (s slowInspect) Open(o driver.Options) (driver.Driver, error) {
	d, err := s.Opener.Open(o)
	return &slowAdmin{d, d.(driver.Admin)}, err //nolint:forcetypeassert // memlock is one
}

func (s *slowAdmin) Caps() driver.Caps {
	c := s.Driver.Caps()
	c.Remote = true
	return c
}

func (s *slowAdmin) Inspect(ctx context.Context, _ string) ([]driver.Claim, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// Looking up the holder takes no longer than the caller would wait, and delays no grant.
func TestLookForHolderHasATimeout(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := memlock.New()
		holder := acquire(t, client(t, store, dlock.Config{}), "k")
		for _, opts := range [][]dlock.Option{nil, observe(t).opts} {
			c := client(t, slowInspect{store}, dlock.Config{}, opts...)
			began := time.Now()
			wantErr(t, c.Lock(ctx, "k", dlock.WithWait(100*time.Millisecond)), dlock.ErrLockHeldByOther)
			if took := time.Since(began); took != 150*time.Millisecond {
				t.Errorf("a wait of 100ms took %v", took)
			}
			began = time.Now()
			_, err := c.TryAcquire(ctx, "k")
			wantErr(t, err, dlock.ErrLockHeldByOther)
			if took := time.Since(began); took != 250*time.Millisecond {
				t.Errorf("an attempt took %v", took)
			}
		}
		c := client(t, slowInspect{store}, dlock.Config{}, observe(t).opts...)
		got := async(func() *dlock.Guard { return acquire(t, c, "k") })
		elapse(50 * time.Millisecond)
		began := time.Now()
		unlock(t, holder)
		unlock(t, <-got)
		if took := time.Since(began); took > 100*time.Millisecond {
			t.Errorf("the grant took %v", took)
		}
	})
}

// adminOf is a scripted backend that returns holders and waiters.
type adminOf struct{ *scripted }

func (s adminOf) Open(o driver.Options) (driver.Driver, error) {
	d, err := s.Opener.Open(o)
	return struct {
		driver.Driver
		driver.Admin
	}{&scriptedDriver{d, s.scripted}, d.(driver.Admin)}, err //nolint:forcetypeassert // memlock is one
}

// The number of waiters does not include the caller.
func TestWaitingLeavesOutTheCaller(t *testing.T) {
	for _, batch := range []int{0, 8} {
		virtual(t, func(t *testing.T) {
			store := memlock.New()
			acquire(t, client(t, store, dlock.Config{}), "k")
			slow := func(ctx context.Context, d driver.Driver, r driver.Ref) (driver.State, error) {
				elapse(second)
				return d.Release(ctx, r)
			}
			err := client(t, adminOf{&scripted{Opener: store, release: slow}}, dlock.Config{LocalBatch: batch}).Lock(ctx, "k", dlock.WithWait(second))
			var e *dlock.Error
			if !errors.As(err, &e) || e.Waiters != 0 || e.Holder == nil {
				t.Errorf("LocalBatch %d: %v", batch, err)
			}
		})
	}
}

// A local queue has one claim. It counts for the callers that still wait, when one of them gives up.
func TestWaitingCountsOtherLocalCallers(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := memlock.New()
		holder := acquire(t, client(t, store, dlock.Config{}), "k")
		c := client(t, store, dlock.Config{LocalBatch: 8})
		other := async(func() *dlock.Guard { return acquire(t, c, "k") })
		synctest.Wait()
		err := c.Lock(ctx, "k", dlock.WithWait(second))
		var e *dlock.Error
		if !errors.As(err, &e) || e.Waiters != 1 {
			t.Errorf("%v", err)
		}
		unlock(t, holder)
		unlock(t, <-other)
	})
}

// A caller that waits behind another goroutine of its own process is told so.
func TestHolderInTheSameProcess(t *testing.T) {
	virtual(t, func(t *testing.T) {
		c := client(t, memlock.New(), dlock.Config{LocalBatch: 8})
		holder := acquire(t, c, "k")
		err := c.Lock(ctx, "k", dlock.WithWait(second))
		var e *dlock.Error
		if !errors.As(err, &e) || e.Waiters != 0 || e.Holder == nil || e.Holder.Token != holder.Token() {
			t.Errorf("%v", err)
		}
	})
}

// When the context of a waiter ends while its renewals fail, the error has both.
func TestCancelledWaitNamesTheCause(t *testing.T) {
	for _, batch := range []int{0, 8} {
		virtual(t, func(t *testing.T) {
			store, denied := memlock.New(), errors.New("denied by the server")
			acquire(t, client(t, store, dlock.Config{}), "k")
			fails := func(context.Context, driver.Driver, []driver.Ref) ([]driver.State, error) { return nil, denied }
			c := client(t, &scripted{Opener: store, renew: fails}, dlock.Config{LocalBatch: batch})
			short, cancel := context.WithTimeout(ctx, 10*second)
			defer cancel()
			_, err := c.Acquire(short, "k")
			wantErr(t, err, context.DeadlineExceeded, denied, dlock.ErrUnknownOutcome)
		})
	}
}

// While its renewals fail, a waiter asks at least once in each heartbeat: a backend may keep its place for that long.
func TestFailedHeartbeatsAreRepeatedInTime(t *testing.T) {
	for _, ttl := range []time.Duration{second / 2, 30 * second} {
		virtual(t, func(t *testing.T) {
			store, last := memlock.New(), time.Now()
			acquire(t, client(t, store, dlock.Config{}), "k")
			fails := func(context.Context, driver.Driver, []driver.Ref) ([]driver.State, error) {
				if gap := time.Since(last); gap >= driver.Heartbeat(ttl) {
					t.Errorf("TTL %v: a renewal came %v after the one before", ttl, gap)
				}
				last = time.Now()
				return nil, errors.New("away")
			}
			c := client(t, &scripted{Opener: store, renew: fails}, dlock.Config{RetryInterval: 5 * second})
			err := c.Lock(ctx, "k", dlock.WithTTL(ttl), dlock.WithWait(20*second))
			wantErr(t, err, dlock.ErrUnknownOutcome)
			if time.Since(last) > 5*second {
				t.Errorf("the last renewal was %v ago", time.Since(last))
			}
		})
	}
}

// A caller that gives up is not a failure of the backend.
func TestCancellationIsNotLogged(t *testing.T) {
	virtual(t, func(t *testing.T) {
		o := observe(t)
		asked := make(chan struct{})
		hang := func(ctx context.Context, _ driver.Driver, _ driver.Request) (driver.State, error) {
			close(asked)
			<-ctx.Done()
			return driver.State{}, ctx.Err()
		}
		c := o.client(t, &scripted{Opener: memlock.New(), acquire: hang, remote: true}, dlock.Config{})
		short, cancel := context.WithCancel(ctx)
		got := async(func() error { _, err := c.Acquire(short, "k"); return err })
		<-asked
		cancel()
		wantErr(t, <-got, context.Canceled)
		if log := strings.Join(o.lines(), "\n"); strings.Contains(log, "backend fails") {
			t.Error(log)
		}
	})
}

// Extend returns when a renewal that it caused was answered, not an earlier one.
func TestExtendIsNotAnsweredByAnOlderRenewal(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := 0
		renew := func(ctx context.Context, d driver.Driver, r []driver.Ref) ([]driver.State, error) {
			st, err := d.Renew(ctx, r)
			n++
			if n == 1 {
				elapse(10 * second)
			}
			return st, err
		}
		c := client(t, &scripted{Opener: memlock.New(), renew: renew}, dlock.Config{})
		g := acquire(t, c, "k", dlock.WithTTL(time.Minute))
		elapse(29 * second)
		if err := g.Extend(ctx, time.Minute); err != nil {
			t.Fatal(err)
		}
		if left := g.Remaining(); left < 56*second {
			t.Errorf("Extend to 60s left %v", left)
		}
	})
}

// hidesDeadline wraps a context as some libraries do.
type hidesDeadline struct{ context.Context }

func (hidesDeadline) Deadline() (time.Time, bool) { return time.Time{}, false }

func TestWithContextFollowsAHiddenDeadline(t *testing.T) {
	virtual(t, func(t *testing.T) {
		g := acquire(t, client(t, memlock.New(), dlock.Config{}), "k")
		parent, cancel := context.WithTimeout(ctx, second)
		defer cancel()
		child, stop := g.WithContext(hidesDeadline{parent})
		defer stop()
		elapse(2 * second)
		if child.Err() == nil {
			t.Error("the parent is over, and its child is not")
		}
	})
}

func TestInnerUnlockReportsALoss(t *testing.T) {
	virtual(t, func(t *testing.T) {
		c := client(t, memlock.New(), dlock.Config{EnableReentrant: true})
		owner := dlock.OwnerContext(ctx)
		lock(t, c, owner, "k")
		lock(t, c, owner, "k")
		a, _ := c.Admin()
		g, _ := c.Held("k")
		if err := a.Evict(ctx, "k", g.Token()); err != nil {
			t.Fatal(err)
		}
		<-g.Done()
		wantErr(t, c.Unlock(ctx, "k"), dlock.ErrOwnershipLost)
		wantErr(t, c.Unlock(ctx, "k"), dlock.ErrOwnershipLost)
		wantErr(t, c.Unlock(ctx, "k"), dlock.ErrLockNotHeld)
	})
}

func TestContradictingOptions(t *testing.T) {
	c := client(t, memlock.New(), dlock.Config{})
	_, err := c.Acquire(ctx, "k", dlock.WithShared(), dlock.WithPermits(2))
	wantErr(t, err, dlock.ErrInvalidConfig)
	_, err = c.Acquire(ctx, "k", dlock.WithMinHold(2), dlock.WithMaxHold(1))
	wantErr(t, err, dlock.ErrInvalidConfig)
}

// An attempt that was not answered may be stored, even if later attempts did not reach the backend
// and none is in flight when the call gives up.
func TestUnknownOutcomeSticksInAHandoff(t *testing.T) {
	virtual(t, func(t *testing.T) {
		attempts := 0
		s := &scripted{Opener: memlock.New(), remote: true}
		s.acquire = func(context.Context, driver.Driver, driver.Request) (driver.State, error) {
			attempts++
			if attempts == 1 {
				return driver.State{}, errors.New("connection reset")
			}
			return driver.State{}, unreached(errRefused)
		}
		_, err := client(t, s, dlock.Config{LocalBatch: 8}).Acquire(ctx, "k", dlock.WithWait(second))
		wantErr(t, err, dlock.ErrUnknownOutcome, errRefused)
		if errors.Is(err, dlock.ErrUnavailable) || attempts < 2 {
			t.Errorf("%v, after %d attempts", err, attempts)
		}
	})
}

// The acquisition for local waiters fails at the same time as the wait of one of them ends: that
// one reports the failure, not that another has the lock.
func TestHandoffFailsWhenTheWaitEnds(t *testing.T) {
	for range times(20, 500) {
		virtual(t, func(t *testing.T) {
			store := memlock.New()
			acquire := func(context.Context, driver.Driver, driver.Request) (driver.State, error) {
				elapse(time.Second)
				return driver.State{}, driver.Classify(driver.ErrDenied, driver.Fatal)
			}
			c := client(t, &scripted{Opener: store, acquire: acquire}, dlock.Config{LocalBatch: 1})
			_, err := c.Acquire(ctx, "k", dlock.WithWait(time.Second))
			if !errors.Is(err, dlock.ErrDenied) && !errors.Is(err, dlock.ErrUnknownOutcome) { // unknown: the wait ended first
				t.Errorf("nothing is held: %v", err)
			}
		})
	}
}
