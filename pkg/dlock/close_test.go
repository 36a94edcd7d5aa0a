package dlock_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/faultdriver"
	"github.com/ceyewan/genesis/pkg/dlock/memlock"
)

func TestClose(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := memlock.New()
		c, other := client(t, store, dlock.Config{}), client(t, store, dlock.Config{})
		g := acquire(t, c, "guard")
		lock(t, c, ctx, "keyed")
		busy := acquire(t, other, "busy")
		waiter := async(func() error { return c.Lock(ctx, "busy") })
		synctest.Wait()
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
		wantErr(t, <-waiter, dlock.ErrClosed)
		ended(t, g, dlock.ErrClosed)
		free(t, other, "guard")
		free(t, other, "keyed")
		unlock(t, busy)
		free(t, other, "busy")

		if err := c.Close(); err != nil {
			t.Errorf("second Close: %v", err)
		}
		_, tryErr := c.TryLock(ctx, "k")
		_, acquireErr := c.Acquire(ctx, "k")
		_, checkErr := c.Check(ctx)
		admin, err := c.Admin()
		if err != nil {
			t.Fatal(err)
		}
		_, _, listErr := admin.ListPage(ctx, "", "", 1)
		_, inspectErr := admin.Inspect(ctx, "k")
		for i, err := range []error{
			c.Lock(ctx, "k"), tryErr, acquireErr, checkErr, c.Unlock(ctx, "keyed"), g.Unlock(ctx), g.Extend(ctx, second),
			c.Unlock(ctx, "never"), c.Do(ctx, "k", func(context.Context) error { return nil }), listErr, inspectErr, admin.Evict(ctx, "k", 1),
		} {
			if !errors.Is(err, dlock.ErrClosed) {
				t.Errorf("call %d after Close: %v", i, err)
			}
		}
	})
}

// Close returns within three seconds even if the backend does not answer.
func TestCloseHasATimeout(t *testing.T) {
	virtual(t, func(t *testing.T) {
		_, faults := faulty()
		c := client(t, faults, dlock.Config{})
		g := acquire(t, c, "k", dlock.WithTTL(time.Hour))
		for _, op := range []faultdriver.Op{faultdriver.Acquire, faultdriver.Renew, faultdriver.Release} {
			faults.Add(faultdriver.Rule{Op: op, Fault: faultdriver.LoseRequest, Hang: true})
		}
		waiter := async(func() error { return c.Lock(ctx, "k2") })
		synctest.Wait()
		start := time.Now()
		err := c.Close()
		wantErr(t, err, dlock.ErrUnknownOutcome)
		if took := time.Since(start); took > 3*second {
			t.Errorf("Close took %v", took)
		}
		wantErr(t, <-waiter, dlock.ErrClosed)
		ended(t, g, dlock.ErrClosed)
	})
}

// Close returns the driver's error.
func TestCloseReportsTheDriver(t *testing.T) {
	virtual(t, func(t *testing.T) {
		for _, left := range []bool{false, true} {
			_, faults := faulty()
			c, err := dlock.New(&dlock.Config{}, dlock.WithBackend(&closeFails{faults}))
			if err != nil {
				t.Fatal(err)
			}
			acquire(t, c, "k")
			if left {
				faults.Add(faultdriver.Rule{Op: faultdriver.Release, Fault: faultdriver.LoseRequest, Hang: true})
			}
			err = c.Close()
			wantErr(t, err, errNet)
			if errors.Is(err, dlock.ErrUnknownOutcome) != left {
				t.Errorf("%v", err)
			}
		}
	})
}

type closeFails struct{ driver.Opener }

type closeFailsDriver struct{ driver.Driver }

func (o *closeFails) Open(opts driver.Options) (driver.Driver, error) {
	d, err := o.Opener.Open(opts)
	return &closeFailsDriver{d}, err
}

func (d *closeFailsDriver) Close() error { return errors.Join(d.Driver.Close(), errNet) }

// Close at any moment: no claim is left, and no call hangs.
func TestRandomClose(t *testing.T) {
	for seed := range times(100, 1000) {
		virtual(t, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(uint64(seed), 1))
			store := memlock.New()
			faults := faultdriver.New(store, uint64(seed),
				faultdriver.Rule{Op: faultdriver.Acquire, Fault: faultdriver.Delay, Delay: time.Millisecond, Chance: 0.3},
				faultdriver.Rule{Op: faultdriver.Acquire, Fault: faultdriver.LoseAnswer, Chance: 0.1},
				faultdriver.Rule{Op: faultdriver.Release, Fault: faultdriver.DelayAnswer, Delay: time.Millisecond, Chance: 0.3},
				faultdriver.Rule{Op: faultdriver.Release, Fault: faultdriver.LoseAnswer, Chance: 0.1},
			).Remote()
			c, other := client(t, faults, dlock.Config{}), client(t, store, dlock.Config{})
			var wg sync.WaitGroup
			for range 8 {
				pause := time.Duration(rng.IntN(3000)) * time.Microsecond
				wg.Go(func() {
					for {
						g, err := c.Acquire(ctx, "k")
						if errors.Is(err, dlock.ErrClosed) {
							return
						}
						if err != nil {
							t.Error(err)
							return
						}
						elapse(pause)
						_ = g.Unlock(ctx)
					}
				})
			}
			elapse(time.Duration(rng.IntN(20_000)) * time.Microsecond)
			start := time.Now()
			if err := c.Close(); err != nil {
				t.Errorf("seed %d: %v", seed, err)
			}
			if took := time.Since(start); took > 3*second {
				t.Errorf("seed %d: Close took %v", seed, took)
			}
			wg.Wait()
			if claims := inspect(t, other, "k"); len(claims) > 0 {
				t.Errorf("seed %d left %v", seed, claims)
			}
			if n := c.Entries() + c.Unanswered(); n != 0 {
				t.Errorf("seed %d left %d entries", seed, n)
			}
		})
	}
}

// Lock and unlock cycles leave nothing behind, with any keys.
func TestCyclesLeaveNothing(t *testing.T) {
	store, n := memlock.New(), times(5000, 1_000_000)
	c := client(t, store, dlock.Config{})
	for i := range n {
		key := string(rune(0x4e00+i%20_000)) + string(rune(0x4e00+i/20_000))
		if i%2 == 0 {
			unlock(t, acquire(t, c, key))
			continue
		}
		lock(t, c, ctx, key)
		unlockKey(t, c, key)
	}
	if n := c.Entries() + c.Unanswered(); n != 0 {
		t.Errorf("%d entries are left", n)
	}
	a, err := c.Admin()
	if err != nil {
		t.Fatal(err)
	}
	if keys, _, err := a.ListPage(ctx, "", "", 1); err != nil || len(keys) > 0 {
		t.Errorf("the store has %v, %v", keys, err)
	}
}

// Nothing is renewed after its release.
func TestNoRenewalAfterRelease(t *testing.T) {
	virtual(t, func(t *testing.T) {
		_, faults := faulty()
		c := client(t, faults, dlock.Config{})
		for range 1000 {
			g := acquire(t, c, "k", dlock.WithTTL(50*time.Millisecond))
			elapse(time.Duration(rand.IntN(100)) * time.Millisecond)
			unlock(t, g)
		}
		before := faults.Calls(faultdriver.Renew)
		elapse(time.Minute)
		if n := faults.Calls(faultdriver.Renew) - before; n > 0 {
			t.Errorf("%d renewals after the last release", n)
		}
	})
}

// Close reports in words what it could not release.
func TestCloseReportsWhatIsLeft(t *testing.T) {
	virtual(t, func(t *testing.T) {
		_, faults := faulty(faultdriver.Rule{Op: faultdriver.Release, Fault: faultdriver.LoseRequest})
		c := client(t, faults, dlock.Config{})
		acquire(t, c, "k")
		err := c.Close()
		wantErr(t, err, dlock.ErrUnknownOutcome)
		if text := err.Error(); !strings.HasSuffix(text, "1 claims are left to their leases") {
			t.Error(text)
		}
	})
}

// Close reports a lock that the backend refused to release, with the cause.
func TestCloseReportsWhatWasRefused(t *testing.T) {
	virtual(t, func(t *testing.T) {
		denied := errors.New("no rights")
		refusing := &scripted{Opener: memlock.New(), remote: true}
		refusing.release = func(context.Context, driver.Driver, driver.Ref) (driver.State, error) {
			return driver.State{}, driver.Classify(denied, driver.Fatal)
		}
		c, err := dlock.New(&dlock.Config{DefaultTTL: time.Hour}, dlock.WithBackend(refusing))
		if err != nil {
			t.Fatal(err)
		}
		unlocked := acquire(t, c, "unlocked")
		acquire(t, c, "held")
		err = unlocked.Unlock(ctx)
		wantErr(t, err, dlock.ErrUnknownOutcome)
		if text := err.Error(); strings.Contains(text, "goes on") || !strings.Contains(text, "left to its lease") {
			t.Errorf("Unlock says: %s", text)
		}
		synctest.Wait() // its cleanup is refused too
		err = c.Close()
		wantErr(t, err, dlock.ErrUnknownOutcome)
		if text := err.Error(); !strings.HasSuffix(text, "1 claims are left to their leases: no rights") {
			t.Errorf("Close says: %s", text)
		}
	})
}

// Renewals are carried out, and their answers are lost: the lock is lost here, but still stored at
// the backend. Close releases it, although its holder has not unlocked it yet.
func TestCloseReleasesWhatWasLost(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store, faults := faulty(faultdriver.Rule{Op: faultdriver.Renew, Fault: faultdriver.LoseAnswer})
		c := client(t, faults, dlock.Config{})
		g := acquire(t, c, "k", dlock.WithTTL(time.Minute))
		<-g.Done()
		ended(t, g, dlock.ErrOwnershipLost)
		other := client(t, store, dlock.Config{})
		_, err := other.TryAcquire(ctx, "k")
		wantErr(t, err, dlock.ErrLockHeldByOther)
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
		free(t, other, "k")
	})
}

// A late attempt stores an evicted claim again, with another token: the lock is lost by the answer
// of the backend, and Close releases the claim.
func TestCloseReleasesAClaimWithAnotherToken(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store, attempts := memlock.New(), 0
		var late func()
		c := client(t, &scripted{Opener: store, remote: true, acquire: func(ctx context.Context, d driver.Driver, r driver.Request) (driver.State, error) {
			attempts++
			if attempts == 1 {
				late = func() { _, _ = d.Acquire(context.Background(), r) }
				return driver.State{}, errReset
			}
			return d.Acquire(ctx, r)
		}}, dlock.Config{})
		g := acquire(t, c, "k", dlock.WithTTL(time.Hour))
		other := client(t, store, dlock.Config{})
		a, err := other.Admin()
		if err != nil {
			t.Fatal(err)
		}
		if err := a.Evict(ctx, "k", g.Token()); err != nil {
			t.Fatal(err)
		}
		late()
		<-g.Done()
		ended(t, g, dlock.ErrOwnershipLost)
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
		free(t, other, "k")
	})
}

// Where leases may restart, a release is retried until the backend confirms it, however long that
// takes.
func TestCleanupOutlastsTheLease(t *testing.T) {
	for _, restarts := range []bool{false, true} {
		virtual(t, func(t *testing.T) {
			store := memlock.New()
			var down atomic.Bool
			backend := &scripted{Opener: store, caps: func(c *driver.Caps) { c.Remote, c.LeaseRestarts = true, restarts }}
			backend.release = func(ctx context.Context, d driver.Driver, r driver.Ref) (driver.State, error) {
				if down.Load() {
					return driver.State{}, errReset
				}
				return d.Release(ctx, r)
			}
			c := client(t, backend, dlock.Config{})
			g := acquire(t, c, "k", dlock.WithTTL(time.Minute))
			down.Store(true)
			wantErr(t, g.Unlock(ctx), dlock.ErrUnknownOutcome)
			elapse(10 * time.Minute)
			want := 0
			if restarts {
				want = 1
			}
			if n := c.Unanswered(); n != want {
				t.Errorf("leases restart: %v, and %d claims wait for cleanup", restarts, n)
			}
			down.Store(false)
			elapse(time.Second)
			if n := c.Unanswered(); n != 0 {
				t.Errorf("%d claims wait for cleanup of a backend that answers", n)
			}
		})
	}
}

// A lock that is lost and never unlocked is released after the time that its holder has to stop.
func TestLostLockIsReleased(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store, faults := faulty(faultdriver.Rule{Op: faultdriver.Renew, Fault: faultdriver.LoseAnswer})
		c := client(t, faults, dlock.Config{})
		g := acquire(t, c, "k", dlock.WithTTL(time.Minute))
		<-g.Done()
		released := faults.Calls(faultdriver.Release)
		elapse(time.Minute - time.Millisecond)
		if n := faults.Calls(faultdriver.Release) - released; n != 0 {
			t.Errorf("%d releases while the holder may still stop", n)
		}
		elapse(2 * time.Millisecond)
		if n := faults.Calls(faultdriver.Release) - released; n != 1 {
			t.Errorf("%d releases of a lost lock, want 1", n)
		}
		if n := c.Lost(); n != 0 {
			t.Errorf("%d lost guards are kept", n)
		}
		free(t, client(t, store, dlock.Config{}), "k")
		wantErr(t, g.Unlock(ctx), dlock.ErrOwnershipLost)
		elapse(time.Minute)
		if n := faults.Calls(faultdriver.Release) - released; n != 1 {
			t.Errorf("%d releases of a lost lock after Unlock, want 1", n)
		}
	})
}

// A lock was lost with its lease, and its holder unlocks it after Close. Cleanup has ended by
// then, so nothing is handed to it, and the backend is not called.
func TestUnlockOfALostLockAfterClose(t *testing.T) {
	virtual(t, func(t *testing.T) {
		_, faults := faulty()
		c := client(t, faults, dlock.Config{})
		g := acquire(t, c, "k", dlock.WithTTL(second), dlock.WithoutRenewal())
		<-g.Done()
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
		calls := faults.Calls(faultdriver.Release)
		wantErr(t, g.Unlock(ctx), dlock.ErrOwnershipLost)
		elapse(time.Minute)
		if n := c.Unanswered(); n != 0 {
			t.Errorf("%d claims wait for cleanup that has ended", n)
		}
		if n := faults.Calls(faultdriver.Release) - calls; n != 0 {
			t.Errorf("%d releases after Close", n)
		}
	})
}
