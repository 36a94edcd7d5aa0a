package dlock_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/faultdriver"
)

// slowRelease makes the next releases arrive late.
func slowRelease(times int) faultdriver.Rule {
	return faultdriver.Rule{Op: faultdriver.Release, Fault: faultdriver.Delay, Delay: 100 * time.Millisecond, Times: times}
}

// Unlock returns at once, after the context has ended. Others get the lock when the release arrives.
func TestAsyncUnlock(t *testing.T) {
	virtual(t, func(t *testing.T) {
		_, faults := faulty(slowRelease(1))
		c, other := client(t, faults, dlock.Config{}), client(t, faults, dlock.Config{})
		g := acquire(t, c, "k", dlock.WithAsyncUnlock())
		next := async(func() *dlock.Guard { return acquire(t, other, "k") })
		synctest.Wait()
		began := time.Now()
		unlock(t, g)
		if took := time.Since(began); took != 0 {
			t.Errorf("Unlock took %v", took)
		}
		ended(t, g, context.Canceled)
		wantErr(t, g.Unlock(ctx), dlock.ErrLockNotHeld)
		if len(inspect(t, other, "k")) != 2 {
			t.Error("the lock was released before the release arrived")
		}
		alive(t, <-next)
		if took := time.Since(began); took != 100*time.Millisecond {
			t.Errorf("the lock passed on after %v", took)
		}
	})
}

// Calls of the same Client for the same key are in order: none finds its own old lock.
func TestAsyncUnlockThenLock(t *testing.T) {
	virtual(t, func(t *testing.T) {
		_, faults := faulty(slowRelease(0))
		c := client(t, faults, dlock.Config{})
		for range 10 {
			ok, err := c.TryLock(ctx, "k", dlock.WithAsyncUnlock())
			if err != nil || !ok {
				t.Fatalf("%v, %v", ok, err)
			}
			unlockKey(t, c, "k")
			calls := faults.Calls(faultdriver.Renew)
			unlock(t, acquire(t, c, "k", dlock.WithAsyncUnlock()))
			if faults.Calls(faultdriver.Renew) != calls {
				t.Error("the lock was waited for at the backend")
			}
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
}

// WithWait limits the whole call, with the wait for a release of the same Client.
func TestAsyncUnlockThenShortWait(t *testing.T) {
	virtual(t, func(t *testing.T) {
		_, faults := faulty(slowRelease(1))
		c := client(t, faults, dlock.Config{})
		unlock(t, acquire(t, c, "k", dlock.WithAsyncUnlock()))
		began := time.Now()
		_, err := c.Acquire(ctx, "k", dlock.WithAsyncUnlock(), dlock.WithWait(20*time.Millisecond))
		wantErr(t, err, dlock.ErrLockHeldByOther)
		if took := time.Since(began); took != 20*time.Millisecond {
			t.Errorf("the call took %v", took)
		}
	})
}

// What the answer says is not lost: a loss is counted and logged, and a release that fails is logged
// and goes on.
func TestAsyncUnlockFails(t *testing.T) {
	virtual(t, func(t *testing.T) {
		o := observe(t)
		_, faults := faulty()
		c := client(t, faults, dlock.Config{}, o.opts...)
		other := client(t, faults, dlock.Config{})
		lost := acquire(t, c, "lost", dlock.WithAsyncUnlock())
		faults.Add(faultdriver.Rule{Op: faultdriver.Push, Fault: faultdriver.LosePush})
		admin, err := other.Admin()
		wantErr(t, err, nil)
		wantErr(t, admin.Evict(ctx, "lost", lost.Token()), nil)
		unlock(t, lost)
		synctest.Wait()
		wantErr(t, lost.Err(), dlock.ErrOwnershipLost)
		if text := strings.Join(o.lines(), "\n"); strings.Contains(text, "release not confirmed") {
			t.Errorf("a loss is also logged as a release:\n%s", text)
		}

		faults.Add(faultdriver.Rule{Op: faultdriver.Release, Fault: faultdriver.Fail, Times: 20})
		unlock(t, acquire(t, c, "failed", dlock.WithAsyncUnlock()))
		elapse(10 * time.Second)
		free(t, other, "failed")
		text := strings.Join(o.lines(), "\n")
		for _, want := range []string{"ownership lost", "release not confirmed"} {
			if strings.Count(text, want) < 1 {
				t.Errorf("the log does not say %q:\n%s", want, text)
			}
		}
		if n := strings.Count(text, "lock released"); n != 0 {
			t.Errorf("%d releases are logged, and none was confirmed", n)
		}
	})
}

// An Unlock that sends nothing is reported as it is without the option.
func TestAsyncUnlockSendsNothing(t *testing.T) {
	virtual(t, func(t *testing.T) {
		o := observe(t)
		_, faults := faulty()
		c := client(t, faults, dlock.Config{LocalBatch: 4}, o.opts...)
		first := acquire(t, c, "handed over", dlock.WithAsyncUnlock())
		next := async(func() *dlock.Guard { return acquire(t, c, "handed over", dlock.WithAsyncUnlock()) })
		synctest.Wait()
		unlock(t, first)
		unlock(t, <-next)
		unlock(t, acquire(t, c, "lingers", dlock.WithAsyncUnlock(), dlock.WithMinHold(time.Second)))
		synctest.Wait()
		o.want(t, "dlock.releases", "result", "released", 3)
		if n := strings.Count(strings.Join(o.lines(), "\n"), "lock released"); n != 3 {
			t.Errorf("%d releases are logged, want 3", n)
		}
	})
}

// Close waits for a release that is under way, and hands one that fails to cleanup.
func TestAsyncUnlockThenClose(t *testing.T) {
	virtual(t, func(t *testing.T) {
		_, faults := faulty(slowRelease(1))
		c, other := client(t, faults, dlock.Config{}), client(t, faults, dlock.Config{})
		unlock(t, acquire(t, c, "slow", dlock.WithAsyncUnlock()))
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		free(t, other, "slow")
	})
	virtual(t, func(t *testing.T) {
		_, faults := faulty(faultdriver.Rule{Op: faultdriver.Release, Fault: faultdriver.LoseRequest, Hang: true, Times: 1})
		c, other := client(t, faults, dlock.Config{}), client(t, faults, dlock.Config{})
		unlock(t, acquire(t, c, "hangs", dlock.WithAsyncUnlock()))
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		free(t, other, "hangs")
	})
}

// With LocalBatch, calls that wait for their Unlock and calls that do not are not mixed.
func TestAsyncUnlockInABatch(t *testing.T) {
	virtual(t, func(t *testing.T) {
		_, faults := faulty(slowRelease(0))
		c := client(t, faults, dlock.Config{LocalBatch: 4})
		first := acquire(t, c, "k", dlock.WithAsyncUnlock())
		patient := async(func() *dlock.Guard { return acquire(t, c, "k") })
		synctest.Wait()
		quick := async(func() *dlock.Guard { return acquire(t, c, "k", dlock.WithAsyncUnlock()) })
		synctest.Wait()
		began := time.Now()
		unlock(t, first)
		unlock(t, <-quick)
		if took := time.Since(began); took != 0 {
			t.Errorf("a handoff and an Unlock took %v", took)
		}
		g := <-patient
		began = time.Now()
		unlock(t, g)
		if took := time.Since(began); took != 100*time.Millisecond {
			t.Errorf("an Unlock that waits took %v", took)
		}
	})
}
