package dlock_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/faultdriver"
	"github.com/ceyewan/genesis/pkg/dlock/internal/sharedtimeout"
	"github.com/ceyewan/genesis/pkg/dlock/memlock"
)

// Answers to a successful acquire are lost, 1 to 5 times in a row: the call
// succeeds once, as one claim.
func TestLostAnswersToAcquire(t *testing.T) {
	for n := range 5 {
		virtual(t, func(t *testing.T) {
			store, faults := faulty(faultdriver.Rule{Op: faultdriver.Acquire, Fault: faultdriver.LoseAnswer, Times: n + 1})
			c, other := client(t, faults, dlock.Config{}), client(t, store, dlock.Config{})
			g := acquire(t, c, "k")
			if claims := inspect(t, other, "k"); len(claims) != 1 || claims[0].Token != g.Token() {
				t.Fatalf("claims %v, token %d", claims, g.Token())
			}
			unlock(t, g)
			free(t, other, "k")
			if faults.Injected(faultdriver.LoseAnswer) != n+1 {
				t.Error("the fault did not happen")
			}
		})
	}
}

// No answer to an acquire ever arrives: the outcome is unknown, not "busy", and nothing is left one
// second after the network has healed.
func TestUnknownOutcomeIsCleanedUp(t *testing.T) {
	for _, try := range []bool{true, false} {
		virtual(t, func(t *testing.T) {
			store, faults := faulty(
				faultdriver.Rule{Op: faultdriver.Acquire, Fault: faultdriver.LoseAnswer},
				faultdriver.Rule{Op: faultdriver.Release, Fault: faultdriver.LoseRequest},
			)
			c, other := client(t, faults, dlock.Config{MaxRetries: 3}), client(t, store, dlock.Config{})
			var err error
			if try {
				_, err = c.TryLock(ctx, "k")
			} else {
				err = c.Lock(ctx, "k")
			}
			wantErr(t, err, dlock.ErrUnknownOutcome, faultdriver.ErrInjected)
			if errors.Is(err, dlock.ErrLockHeldByOther) {
				t.Errorf("%v", err)
			}
			elapse(3 * second)
			if len(inspect(t, other, "k")) != 1 {
				t.Fatal("the test does not bite: nothing was left behind")
			}
			faults.Clear()
			elapse(second)
			free(t, other, "k")
		})
	}
}

// Cleanup overtakes an attempt that has not arrived yet. The attempt must then find the tombstone
// of its ID.
func TestCleanUpOvertakesTheAttempt(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := memlock.New()
		late := func(ctx context.Context, d driver.Driver, r driver.Request) (driver.State, error) {
			time.AfterFunc(300*time.Millisecond, func() { _, _ = d.Acquire(context.Background(), r) })
			<-ctx.Done()
			return driver.State{}, ctx.Err()
		}
		c, other := client(t, &scripted{Opener: store, acquire: late, remote: true}, dlock.Config{}), client(t, store, dlock.Config{})
		for range 50 {
			short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
			wantErr(t, c.Lock(short, "k"), context.DeadlineExceeded, dlock.ErrUnknownOutcome)
			cancel()
			elapse(2 * second)
			free(t, other, "k")
		}
	})
}

// Calls that are canceled at any point leave nothing and acquire nothing.
func TestCancelledCallsLeaveNothing(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store, faults := faulty(
			faultdriver.Rule{Op: faultdriver.Acquire, Fault: faultdriver.Delay, Delay: 20 * time.Millisecond, Chance: 0.5},
			faultdriver.Rule{Op: faultdriver.Acquire, Fault: faultdriver.DelayAnswer, Delay: 20 * time.Millisecond, Chance: 0.5},
			faultdriver.Rule{Op: faultdriver.Release, Fault: faultdriver.LoseAnswer, Chance: 0.2},
		)
		c, other := client(t, faults, dlock.Config{}), client(t, store, dlock.Config{})
		rng := rand.New(rand.NewPCG(7, 7))
		var wg sync.WaitGroup
		for range times(1000, 5000) {
			short, cancel := context.WithTimeout(ctx, time.Duration(rng.IntN(50_000))*time.Microsecond)
			wg.Go(func() {
				defer cancel()
				if g, err := c.Acquire(short, "k"); err == nil {
					elapse(time.Millisecond)
					_ = g.Unlock(short)
				} else if !errors.Is(err, context.DeadlineExceeded) {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		faults.Clear()
		elapse(second)
		free(t, other, "k")
		if n := c.Entries() + c.Unanswered(); n != 0 {
			t.Errorf("%d entries are left", n)
		}
	})
}

// No public method outlives its context, even if the backend does not answer.
func TestContextIsHonoured(t *testing.T) {
	virtual(t, func(t *testing.T) {
		hang := func(op faultdriver.Op) faultdriver.Rule {
			return faultdriver.Rule{Op: op, Fault: faultdriver.LoseRequest, Hang: true}
		}
		_, faults := faulty()
		c := client(t, faults, dlock.Config{})
		g, h := acquire(t, c, "held", dlock.WithTTL(time.Hour)), acquire(t, c, "extended", dlock.WithTTL(time.Hour))
		if err := c.Lock(ctx, "keyed", dlock.WithTTL(time.Hour)); err != nil {
			t.Fatal(err)
		}
		faults.Add(hang(faultdriver.Acquire))
		faults.Add(hang(faultdriver.Renew))
		faults.Add(hang(faultdriver.Release))
		for name, call := range map[string]func(context.Context) error{
			"Lock":       func(ctx context.Context) error { return c.Lock(ctx, "k") },
			"TryLock":    func(ctx context.Context) error { _, err := c.TryLock(ctx, "k"); return err },
			"Acquire":    func(ctx context.Context) error { _, err := c.Acquire(ctx, "k"); return err },
			"TryAcquire": func(ctx context.Context) error { _, err := c.TryAcquire(ctx, "k"); return err },
			"Do":         func(ctx context.Context) error { return c.Do(ctx, "k", func(context.Context) error { return nil }) },
			"Extend":     func(ctx context.Context) error { return h.Extend(ctx, time.Minute) },
			"Unlock":     func(ctx context.Context) error { return c.Unlock(ctx, "keyed") },
			"guard":      g.Unlock,
		} {
			short, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
			start := time.Now()
			err := call(short)
			cancel()
			if took := time.Since(start); took > 300*time.Millisecond || !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%s: %v after %v", name, err, took)
			}
		}
	})
}

// A release that hangs does not block a caller without a deadline forever.
func TestUnlockHasATimeout(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store, faults := faulty(faultdriver.Rule{Op: faultdriver.Release, Fault: faultdriver.LoseRequest, Hang: true})
		c := client(t, faults, dlock.Config{})
		g := acquire(t, c, "k", dlock.WithTTL(3*second))
		dead, cancel := context.WithCancel(ctx)
		cancel()
		for _, unlockCtx := range []context.Context{ctx, dead} {
			start := time.Now()
			wantErr(t, g.Unlock(unlockCtx), dlock.ErrUnknownOutcome)
			if took := time.Since(start); took > second+100*time.Millisecond {
				t.Errorf("Unlock took %v", took)
			}
			ended(t, g, context.Canceled)
			g = acquire(t, c, "k2", dlock.WithTTL(3*second))
		}
		faults.Clear()
		elapse(2 * second)
		free(t, client(t, store, dlock.Config{}), "k")
	})
}

// The answer to an unlock is lost. It is still an unlock, and a caller that locks between the
// attempts keeps the lock.
func TestLostAnswerToUnlock(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store, faults := faulty()
		c, other := client(t, faults, dlock.Config{}), client(t, store, dlock.Config{})
		for range 200 {
			faults.Add(faultdriver.Rule{Op: faultdriver.Release, Fault: faultdriver.LoseAnswer, Times: 1})
			g := acquire(t, c, "k")
			next := async(func() *dlock.Guard { return acquire(t, other, "k") })
			synctest.Wait()
			start := time.Now()
			done := async(func() error { return g.Unlock(ctx) })
			h := <-next
			if took := time.Since(start); took > 100*time.Millisecond {
				t.Errorf("handed over after %v", took)
			}
			if err := <-done; err != nil {
				t.Fatal(err)
			}
			alive(t, h)
			unlock(t, h)
		}
	})
}

// Unlocking after the lease has ended does not touch the next holder's lock.
func TestUnlockAfterExpiry(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := memlock.New()
		a, b := client(t, store, dlock.Config{}), client(t, store, dlock.Config{})
		for range 100 {
			g := acquire(t, a, "k", dlock.WithTTL(300*time.Millisecond), dlock.WithoutRenewal())
			elapse(500 * time.Millisecond)
			h := acquire(t, b, "k", dlock.WithoutRenewal())
			before := inspect(t, b, "k")
			wantErr(t, g.Unlock(ctx), dlock.ErrOwnershipLost)
			synctest.Wait()
			if after := inspect(t, b, "k"); !slices.Equal(before, after) {
				t.Fatalf("%v became %v", before, after)
			}
			unlock(t, h)
		}
	})
}

// A lock that was unlocked in time is not reported as lost if the backend answers after the lease:
// it may have been released before, so Unlock returns ErrUnknownOutcome.
func TestReleaseAnsweredAfterTheLease(t *testing.T) {
	virtual(t, func(t *testing.T) {
		late := &scripted{Opener: memlock.New(), remote: true}
		late.release = func(ctx context.Context, d driver.Driver, r driver.Ref) (driver.State, error) {
			elapse(900 * time.Millisecond)
			return d.Release(ctx, r)
		}
		c := client(t, late, dlock.Config{})
		opts := []dlock.LockOption{dlock.WithTTL(3 * time.Second), dlock.WithoutRenewal()}
		g := acquire(t, c, "k", opts...)
		elapse(2500 * time.Millisecond)
		alive(t, g)
		err := g.Unlock(ctx)
		wantErr(t, err, dlock.ErrUnknownOutcome)
		if errors.Is(err, dlock.ErrOwnershipLost) {
			t.Errorf("told as lost: %v", err)
		}
		if err := c.Do(ctx, "k", func(context.Context) error { elapse(2500 * time.Millisecond); return nil }, opts...); err != nil {
			t.Errorf("Do says: %v", err)
		}
	})
}

// Unlock with a context that has ended, as in a deferred call, releases the lock.
func TestUnlockWithDeadContext(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store, faults := faulty()
		c, other := client(t, faults, dlock.Config{}), client(t, store, dlock.Config{})
		dead, cancel := context.WithCancel(ctx)
		g := acquire(t, c, "k")
		cancel()
		if err := g.Unlock(dead); err != nil {
			t.Fatal(err)
		}
		free(t, other, "k")
	})
}

func TestWithWaitLimitsTheWait(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := memlock.New()
		a, b := client(t, store, dlock.Config{}), client(t, store, dlock.Config{})
		g := acquire(t, a, "k", dlock.WithInfo(dlock.Info{Owner: "api-7", Purpose: "test"}))
		elapse(12 * second)
		go func() { _ = a.Lock(ctx, "k") }()
		synctest.Wait()
		start := time.Now()
		err := b.Lock(ctx, "k", dlock.WithWait(5*second))
		wantErr(t, err, dlock.ErrLockHeldByOther)
		if took := time.Since(start); took != 5*second {
			t.Errorf("waited %v of 5s", took)
		}
		var e *dlock.Error
		if !errors.As(err, &e) || e.Holder == nil || e.Holder.Info.Owner != "api-7" || e.Holder.Token != g.Token() || e.Waiters < 1 {
			t.Errorf("the error %v does not say who is in the way", err)
		}
		if text := err.Error(); !strings.Contains(text, `lock "k"`) || !strings.Contains(text, "api-7") || !strings.Contains(text, "for 17s") {
			t.Errorf("%s", text)
		}
		start = time.Now()
		wantErr(t, b.Lock(ctx, "k", dlock.WithWait(0)), dlock.ErrLockHeldByOther)
		if ok, err := b.TryLock(ctx, "k"); ok || err != nil {
			t.Errorf("TryLock of a taken key: %v, %v", ok, err)
		}
		_, err = b.TryAcquire(ctx, "k")
		wantErr(t, err, dlock.ErrLockHeldByOther)
		wantErr(t, b.Do(ctx, "k", func(context.Context) error { return nil }, dlock.WithWait(0)), dlock.ErrLockHeldByOther)
		if took := time.Since(start); took != 0 {
			t.Errorf("trying took %v", took)
		}
	})
}

// A canceled waiter gets the context's error, with the cause if there is one.
func TestCancelledWaiter(t *testing.T) {
	virtual(t, func(t *testing.T) {
		c := client(t, memlock.New(), dlock.Config{})
		acquire(t, c, "k")
		mine := errors.New("shutting down")
		waiting, cancel := context.WithCancelCause(ctx)
		got := async(func() error { _, err := c.Acquire(waiting, "k"); return err })
		synctest.Wait()
		cancel(mine)
		wantErr(t, <-got, context.Canceled, mine)
		synctest.Wait()
		if n := len(inspect(t, c, "k")); n != 1 {
			t.Errorf("%d claims are left", n)
		}
	})
}

// If all pushes are lost, a handoff takes at most a third of a heartbeat.
func TestLostPushesDelayButDoNotHang(t *testing.T) {
	virtual(t, func(t *testing.T) {
		_, faults := faulty(faultdriver.Rule{Op: faultdriver.Push, Fault: faultdriver.LosePush})
		c := client(t, faults, dlock.Config{})
		for range 100 {
			g := acquire(t, c, "k")
			got := async(func() *dlock.Guard { return acquire(t, c, "k") })
			elapse(time.Duration(rand.IntN(3000)) * time.Millisecond)
			unlock(t, g)
			start := time.Now()
			h := <-got
			if took := time.Since(start); took > second+time.Millisecond {
				t.Fatalf("handed over after %v", took)
			}
			unlock(t, h)
		}
	})
}

// Repeated and reordered pushes do no harm.
func TestRepeatedAndReorderedPushes(t *testing.T) {
	virtual(t, func(t *testing.T) {
		_, faults := faulty(
			faultdriver.Rule{Op: faultdriver.Push, Fault: faultdriver.RepeatPush, Chance: 0.5},
			faultdriver.Rule{Op: faultdriver.Push, Fault: faultdriver.ReorderPush, Chance: 0.5},
		)
		c := client(t, faults, dlock.Config{})
		var inside atomic.Int32
		var wg sync.WaitGroup
		for range 30 {
			wg.Go(func() {
				for range 10 {
					g := acquire(t, c, "k")
					if inside.Add(1) != 1 {
						t.Error("overlap")
					}
					elapse(time.Millisecond)
					inside.Add(-1)
					unlock(t, g)
				}
			})
		}
		wg.Wait()
	})
}

// Any number of dead waiters ahead costs one heartbeat in total.
func TestDeadWaitersAhead(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := memlock.New()
		c := client(t, store, dlock.Config{})
		g := acquire(t, c, "k")
		d, err := store.Open(driver.Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = d.Close() }()
		for i := range 1000 {
			id := strings.Repeat("0", 28) + string([]rune{'a' + rune(i/100), 'a' + rune(i/10%10), 'a' + rune(i%10), 'x'})
			if _, err := d.Acquire(ctx, driver.Request{Ref: driver.Ref{Key: "k", ID: id, TTL: 10 * second}, Wait: true}); err != nil {
				t.Fatal(err)
			}
		}
		got := async(func() *dlock.Guard { return acquire(t, c, "k") })
		synctest.Wait()
		unlock(t, g)
		start := time.Now()
		<-got
		if took := time.Since(start); took > 4200*time.Millisecond {
			t.Errorf("1000 dead waiters cost %v", took)
		}
	})
}

// A process that was stopped for longer than a heartbeat loses its place, and
// queues again.
func TestLostPlaceIsSubmittedAnew(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store, faults := faulty()
		c, other := client(t, faults, dlock.Config{}), client(t, store, dlock.Config{})
		g := acquire(t, other, "k")
		got := async(func() *dlock.Guard { return acquire(t, c, "k") })
		elapse(second)
		faults.Add(faultdriver.Rule{Op: faultdriver.Renew, Fault: faultdriver.LoseRequest})
		elapse(5 * second)
		if n := len(inspect(t, other, "k")); n != 1 {
			t.Fatalf("the test does not bite: %d claims", n)
		}
		faults.Clear()
		elapse(2 * second)
		unlock(t, g)
		unlock(t, <-got)
	})
}

// MaxRetries limits backend errors, while submitting and while waiting.
func TestMaxRetries(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store, faults := faulty(faultdriver.Rule{Op: faultdriver.Acquire, Fault: faultdriver.Fail})
		c := client(t, faults, dlock.Config{MaxRetries: 4})
		err := c.Lock(ctx, "k")
		wantErr(t, err, faultdriver.ErrInjected)
		if errors.Is(err, dlock.ErrUnknownOutcome) {
			t.Errorf("%v, though the backend said that it did nothing", err)
		}
		if n := faults.Calls(faultdriver.Acquire); n != 5 {
			t.Errorf("%d attempts for 4 retries", n)
		}
		faults.Clear()
		acquire(t, client(t, store, dlock.Config{}), "k")
		got := async(func() error { return c.Lock(ctx, "k") })
		synctest.Wait()
		faults.Add(faultdriver.Rule{Op: faultdriver.Renew, Fault: faultdriver.Fail})
		wantErr(t, <-got, faultdriver.ErrInjected, dlock.ErrUnknownOutcome)
	})
}

// With the server down, one call makes few attempts.
func TestBackoff(t *testing.T) {
	virtual(t, func(t *testing.T) {
		_, faults := faulty(faultdriver.Rule{Op: faultdriver.Acquire, Fault: faultdriver.Fail})
		c := client(t, faults, dlock.Config{RetryInterval: time.Millisecond})
		short, cancel := context.WithTimeout(ctx, 10*second)
		defer cancel()
		wantErr(t, c.Lock(short, "k"), context.DeadlineExceeded)
		if n := faults.Calls(faultdriver.Acquire); n > 50 {
			t.Errorf("%d attempts in 10s", n)
		}
	})
}

// A fatal error ends the call at once.
func TestFatalErrorIsNotRetried(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := 0
		c := client(t, &scripted{Opener: memlock.New(), acquire: func(context.Context, driver.Driver, driver.Request) (driver.State, error) {
			n++
			return driver.State{}, driver.Classify(errNet, driver.Fatal)
		}}, dlock.Config{})
		err := c.Lock(ctx, "k")
		wantErr(t, err, errNet)
		if n != 1 || errors.Is(err, dlock.ErrUnknownOutcome) {
			t.Errorf("%d attempts, %v", n, err)
		}
		if c.Entries()+c.Unanswered() != 0 {
			t.Error("something is left")
		}
	})
}

// A lock that an operator evicts before the acquisition is answered is not delivered to its caller.
// A caller that waits acquires it again; one that does not wait gets ErrUnknownOutcome.
func TestEvictedBeforeTheAnswer(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := memlock.New()
		slow := &scripted{Opener: store, remote: true}
		slow.acquire = func(ctx context.Context, d driver.Driver, r driver.Request) (driver.State, error) {
			st, err := d.Acquire(ctx, r)
			elapse(100 * time.Millisecond)
			return st, err
		}
		c, other := client(t, slow, dlock.Config{}), client(t, store, dlock.Config{})
		evictAll := func() *dlock.Guard {
			elapse(50 * time.Millisecond)
			a, _ := other.Admin()
			if err := a.Evict(ctx, "k", inspect(t, other, "k")[0].Token); err != nil {
				t.Fatal(err)
			}
			return acquire(t, other, "k")
		}
		tried := async(func() error { _, err := c.TryAcquire(ctx, "k"); return err })
		h := evictAll()
		wantErr(t, <-tried, dlock.ErrUnknownOutcome)
		unlock(t, h)

		waited := async(func() *dlock.Guard { return acquire(t, c, "k") })
		h = evictAll()
		elapse(time.Second)
		select {
		case g := <-waited:
			t.Errorf("two have the lock, with tokens %d and %d", g.Token(), h.Token())
		default:
		}
		unlock(t, h)
		g := <-waited
		if g.Token() <= h.Token() {
			t.Errorf("token %d after %d", g.Token(), h.Token())
		}
		unlock(t, g)
	})
}

// The push of a grant may arrive before the answer to the submission.
func TestPushBeatsTheAnswer(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := memlock.New()
		a := client(t, store, dlock.Config{})
		g := acquire(t, a, "k")
		slow := func(ctx context.Context, d driver.Driver, r driver.Request) (driver.State, error) {
			st, err := d.Acquire(ctx, r)
			unlock(t, g) // the grant is pushed before Queued is answered
			elapse(100 * time.Millisecond)
			return st, err
		}
		b := client(t, &scripted{Opener: store, acquire: slow, renew: func(context.Context, driver.Driver, []driver.Ref) ([]driver.State, error) {
			return nil, errNet // only the push can deliver the grant
		}}, dlock.Config{})
		start := time.Now()
		h := acquire(t, b, "k")
		if took := time.Since(start); took != 100*time.Millisecond {
			t.Errorf("acquired after %v", took)
		}
		if left := h.Remaining(); left != 2750*time.Millisecond {
			t.Errorf("%v left: a heartbeat of 3s less a twentieth, counted from the submission 100ms ago", left)
		}
	})
}

// A grant whose validity has passed when it arrives is not delivered without a renewal.
func TestStaleGrantIsRenewedFirst(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store, faults := faulty(faultdriver.Rule{Op: faultdriver.Acquire, Fault: faultdriver.DelayAnswer, Delay: 1900 * time.Millisecond})
		c := client(t, faults, dlock.Config{})
		g := acquire(t, c, "k", dlock.WithTTL(1950*time.Millisecond), dlock.WithWait(time.Minute))
		if g.Remaining() < second {
			t.Errorf("delivered with %v left", g.Remaining())
		}
		_, err := c.TryAcquire(ctx, "k2", dlock.WithTTL(1950*time.Millisecond))
		wantErr(t, err, dlock.ErrUnknownOutcome)
		elapse(second)
		free(t, client(t, store, dlock.Config{}), "k2")
	})
}

// FIFO across Clients, in the order of the backend's queue.
func TestOrderOfArrival(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := memlock.New()
		g := acquire(t, client(t, store, dlock.Config{}), "k")
		var mu sync.Mutex
		var got []int
		var wg sync.WaitGroup
		for i := range 20 {
			c := client(t, store, dlock.Config{})
			wg.Go(func() {
				h := acquire(t, c, "k")
				mu.Lock()
				got = append(got, i)
				mu.Unlock()
				unlock(t, h)
			})
			synctest.Wait()
		}
		unlock(t, g)
		wg.Wait()
		if !slices.IsSorted(got) || len(got) != 20 {
			t.Errorf("granted in the order %v", got)
		}
	})
}

// A call that the backend gave up early is repeated at once: no time passes, no failure is counted,
// and the ID has a tombstone in the end.
func TestTimedOutAttemptsAreMadeAgain(t *testing.T) {
	virtual(t, func(t *testing.T) {
		submits, releases, tombstone := 0, 0, false
		store := &scripted{
			Opener: memlock.New(),
			acquire: func(ctx context.Context, d driver.Driver, r driver.Request) (driver.State, error) {
				submits++
				if submits == 1 {
					return driver.State{}, sharedtimeout.ErrAttemptTimeout
				}
				return d.Acquire(ctx, r)
			},
			release: func(ctx context.Context, d driver.Driver, r driver.Ref) (driver.State, error) {
				tombstone = r.Unanswered
				st, err := d.Release(ctx, r)
				releases++
				if releases == 1 {
					return driver.State{}, sharedtimeout.ErrAttemptTimeout // it was carried out
				}
				return st, err
			},
		}
		c := client(t, store, dlock.Config{MaxRetries: 1})
		started := time.Now()
		ok, err := c.TryLock(t.Context(), "k")
		if !ok || err != nil {
			t.Fatalf("TryLock: %v, %v", ok, err)
		}
		if err := c.Unlock(t.Context(), "k"); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(started); took != 0 || submits != 2 || releases != 2 || !tombstone {
			t.Errorf("after %v: submitted %d times, released %d times, a tombstone: %v", took, submits, releases, tombstone)
		}
	})
}

// Cleanup also repeats an attempt that timed out at once.
func TestTimedOutCleanupIsMadeAgain(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store, releases := memlock.New(), 0
		g := acquire(t, client(t, store, dlock.Config{}), "k")
		c := client(t, &scripted{Opener: store, release: func(ctx context.Context, d driver.Driver, r driver.Ref) (driver.State, error) {
			releases++
			if releases == 1 {
				return driver.State{}, sharedtimeout.ErrAttemptTimeout
			}
			return d.Release(ctx, r)
		}}, dlock.Config{})
		short, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		wantErr(t, c.Lock(short, "k"), context.DeadlineExceeded)
		synctest.Wait() // no time passes
		if n := c.Unanswered(); n != 0 || releases != 2 {
			t.Errorf("%d claims are left after %d releases", n, releases)
		}
		unlock(t, g)
	})
}

// Clients that failed together do not all retry at once: a pause is spread by a quarter in both
// directions, around 100 ms by default.
func TestPausesAreSpread(t *testing.T) {
	virtual(t, func(t *testing.T) {
		var failed time.Time
		shortest, longest := second, time.Duration(0)
		s := &scripted{Opener: memlock.New(), remote: true}
		s.acquire = func(ctx context.Context, d driver.Driver, r driver.Request) (driver.State, error) {
			if failed.IsZero() {
				failed = time.Now()
				return driver.State{}, unreached(errRefused)
			}
			pause := time.Since(failed)
			shortest, longest = min(shortest, pause), max(longest, pause)
			failed = time.Time{}
			return d.Acquire(ctx, r)
		}
		c := client(t, s, dlock.Config{})
		for range 2000 {
			unlock(t, acquire(t, c, "k"))
		}
		const least, most, near = 75 * time.Millisecond, 125 * time.Millisecond, time.Millisecond
		if shortest < least || shortest > least+near || longest > most || longest < most-near {
			t.Errorf("pauses from %v to %v, want %v to %v", shortest, longest, least, most)
		}
	})
}

// A wait that ends before anything was sent has an error that callers can recognize.
func TestWaitThatIsOverAtOnce(t *testing.T) {
	virtual(t, func(t *testing.T) {
		remote := func(c *driver.Caps) { c.Remote = true }
		c := client(t, &scripted{Opener: memlock.New(), caps: remote, acquire: func(ctx context.Context, _ driver.Driver, _ driver.Request) (driver.State, error) {
			<-ctx.Done()
			return driver.State{}, driver.Classify(ctx.Err(), driver.Transient) // nothing was sent
		}}, dlock.Config{})
		err := c.Lock(ctx, "k", dlock.WithWait(time.Nanosecond))
		if !errors.Is(err, dlock.ErrUnavailable) || errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the wait is over, the context is not, and nothing was sent: %v", err)
		}
	})
}
