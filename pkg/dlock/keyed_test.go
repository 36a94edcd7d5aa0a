package dlock_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/dlocktest"
	"github.com/ceyewan/genesis/pkg/dlock/faultdriver"
	"github.com/ceyewan/genesis/pkg/dlock/memlock"
)

func lock(t testing.TB, c *dlock.Client, ctx context.Context, key string) { //nolint:revive // the test comes first
	t.Helper()
	if err := c.Lock(ctx, key); err != nil {
		t.Fatal(err)
	}
}

func unlockKey(t testing.TB, c *dlock.Client, key string) {
	t.Helper()
	if err := c.Unlock(ctx, key); err != nil {
		t.Fatal(err)
	}
}

func TestKeyedLock(t *testing.T) {
	virtual(t, func(t *testing.T) {
		_, faults := faulty()
		c := client(t, faults, dlock.Config{})
		lock(t, c, ctx, "k")
		calls := faults.Calls(faultdriver.Acquire)
		wantErr(t, c.Lock(ctx, "k"), dlock.ErrLockAlreadyHeld)
		_, err := c.TryLock(ctx, "k")
		wantErr(t, err, dlock.ErrLockAlreadyHeld)
		if faults.Calls(faultdriver.Acquire) != calls {
			t.Error("the backend was asked for a key that this Client holds")
		}
		g, ok := c.Held("k")
		if !ok || g.Key() != "k" || g.Token() == 0 || g.Remaining() <= 0 {
			t.Fatalf("Held = %v, %v", g, ok)
		}
		unlockKey(t, c, "k")
		ended(t, g, context.Canceled)
		wantErr(t, c.Unlock(ctx, "k"), dlock.ErrLockNotHeld)
		wantErr(t, c.Unlock(ctx, "never"), dlock.ErrLockNotHeld)
		if _, ok := c.Held("k"); ok {
			t.Error("held after Unlock")
		}
		if ok, err := c.TryLock(ctx, "k"); !ok || err != nil {
			t.Errorf("TryLock of a free key: %v, %v", ok, err)
		}
		unlockKey(t, c, "k")
	})
}

// A key that is being acquired counts as locked, and cannot be unlocked.
func TestKeyedLockWhileAcquiring(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := memlock.New()
		g := acquire(t, client(t, store, dlock.Config{}), "k")
		c := client(t, store, dlock.Config{})
		got := async(func() error { return c.Lock(ctx, "k") })
		synctest.Wait()
		wantErr(t, c.Lock(ctx, "k"), dlock.ErrLockAlreadyHeld)
		wantErr(t, c.Unlock(ctx, "k"), dlock.ErrLockNotHeld)
		if _, ok := c.Held("k"); ok {
			t.Error("held while it waits")
		}
		unlock(t, g)
		if err := <-got; err != nil {
			t.Fatal(err)
		}
		unlockKey(t, c, "k")
	})
}

// After a loss, the key can be locked again only after the outstanding Unlock, so that an Unlock
// never releases the lock of another caller.
func TestKeyedLossMustBeUnlocked(t *testing.T) {
	virtual(t, func(t *testing.T) {
		c := client(t, memlock.New(), dlock.Config{EnableReentrant: true})
		owner := dlock.OwnerContext(ctx)
		lock(t, c, owner, "k")
		dlocktest.Lose(t, c, "k")
		wantErr(t, c.Lock(ctx, "k"), dlock.ErrOwnershipLost)
		wantErr(t, c.Lock(owner, "k"), dlock.ErrOwnershipLost)
		_, err := c.TryLock(ctx, "k")
		wantErr(t, err, dlock.ErrOwnershipLost)
		if _, ok := c.Held("k"); ok {
			t.Error("held after a loss")
		}
		wantErr(t, c.Unlock(ctx, "k"), dlock.ErrOwnershipLost)
		wantErr(t, c.Unlock(ctx, "k"), dlock.ErrLockNotHeld)
		lock(t, c, ctx, "k")
		unlockKey(t, c, "k")
	})
}

// A lock whose lease has ended is lost for Lock too, before the scheduler has noticed.
func TestKeyedExpiryIsALoss(t *testing.T) {
	virtual(t, func(t *testing.T) {
		var slept atomic.Int64
		c := client(t, memlock.New(), dlock.Config{EnableReentrant: true}, dlock.WithSleptClock(func() time.Duration { return time.Duration(slept.Load()) }))
		lock(t, c, ctx, "k")
		slept.Add(int64(time.Hour))
		wantErr(t, c.Lock(ctx, "k"), dlock.ErrOwnershipLost)
		wantErr(t, c.Unlock(ctx, "k"), dlock.ErrOwnershipLost)
	})
}

// Unlocking the Guard behind a keyed lock ends the keyed lock.
func TestUnlockThroughTheGuard(t *testing.T) {
	virtual(t, func(t *testing.T) {
		c := client(t, memlock.New(), dlock.Config{})
		lock(t, c, ctx, "k")
		g, _ := c.Held("k")
		unlock(t, g)
		if n := c.Entries(); n != 0 {
			t.Errorf("%d entries are left", n)
		}
		wantErr(t, c.Unlock(ctx, "k"), dlock.ErrLockNotHeld)
		lock(t, c, ctx, "k")
		wantErr(t, g.Unlock(ctx), dlock.ErrLockNotHeld)
		unlockKey(t, c, "k")
	})
}

func TestReentry(t *testing.T) {
	virtual(t, func(t *testing.T) {
		_, faults := faulty()
		c := client(t, faults, dlock.Config{EnableReentrant: true})
		owner := dlock.OwnerContext(ctx)
		lock(t, c, owner, "k")
		g, _ := c.Held("k")
		calls := faults.Calls(faultdriver.Acquire)
		inner, cancel := context.WithCancel(owner)
		defer cancel()
		lock(t, c, inner, "k")
		lock(t, c, g.Context(), "k")
		if again, _ := c.Held("k"); again != g || faults.Calls(faultdriver.Acquire) != calls {
			t.Error("re-entry is another lock, or asked the backend")
		}
		wantErr(t, c.Lock(ctx, "k"), dlock.ErrLockAlreadyHeld)
		wantErr(t, c.Lock(dlock.OwnerContext(ctx), "k"), dlock.ErrLockAlreadyHeld)
		for range 2 {
			unlockKey(t, c, "k")
			alive(t, g)
		}
		unlockKey(t, c, "k")
		ended(t, g, context.Canceled)
		wantErr(t, c.Unlock(ctx, "k"), dlock.ErrLockNotHeld)
	})
}

func TestReentryIsOffByDefault(t *testing.T) {
	virtual(t, func(t *testing.T) {
		c := client(t, memlock.New(), dlock.Config{})
		owner := dlock.OwnerContext(ctx)
		lock(t, c, owner, "k")
		wantErr(t, c.Lock(owner, "k"), dlock.ErrLockAlreadyHeld)
		g := acquire(t, c, "guarded")
		wantErr(t, c.Lock(g.Context(), "guarded"), dlock.ErrLockAlreadyHeld)
		_, err := c.Acquire(g.Context(), "guarded")
		wantErr(t, err, dlock.ErrLockAlreadyHeld)
		wantErr(t, c.Do(g.Context(), "guarded", func(context.Context) error { return nil }), dlock.ErrLockAlreadyHeld)
	})
}

// A keyed lock under the context of a Guard of the same key uses that Guard, which its owner still
// unlocks.
func TestReentryUnderAGuard(t *testing.T) {
	virtual(t, func(t *testing.T) {
		c := client(t, memlock.New(), dlock.Config{EnableReentrant: true})
		ran := false
		err := c.Do(ctx, "k", func(ctx context.Context) error {
			lock(t, c, ctx, "k")
			lock(t, c, ctx, "k")
			unlockKey(t, c, "k")
			unlockKey(t, c, "k")
			g, ok := dlock.FromContext(ctx)
			if !ok {
				t.Fatal("no Guard in the context of Do")
			}
			alive(t, g)
			return c.Do(ctx, "k", func(context.Context) error {
				ran = true
				return c.Do(ctx, "other", func(ctx context.Context) error {
					inner, _ := dlock.FromContext(ctx)
					if inner.Key() != "other" {
						t.Errorf("innermost Guard is %q", inner.Key())
					}
					lock(t, c, ctx, "k") // two Guards outwards
					unlockKey(t, c, "k")
					return nil
				})
			})
		})
		if err != nil || !ran {
			t.Errorf("%v, ran %v", err, ran)
		}
		free(t, c, "k")
		g := acquire(t, c, "k")
		lock(t, c, g.Context(), "k")
		unlock(t, g)
		wantErr(t, c.Unlock(ctx, "k"), dlock.ErrLockNotHeld)

		g = acquire(t, c, "k")
		lock(t, c, g.Context(), "k")
		dlocktest.Lose(t, c, "k")
		wantErr(t, c.Unlock(ctx, "k"), dlock.ErrOwnershipLost)
		if n := c.Entries(); n != 0 {
			t.Errorf("%d entries are left", n)
		}
	})
}

// 64 goroutines, each with its own owner, never overlap on one Client.
func TestReentrantClientExcludesItsGoroutines(t *testing.T) {
	c := client(t, memlock.New(), dlock.Config{EnableReentrant: true})
	var inside, overlaps, entries atomic.Int32
	var wg sync.WaitGroup
	for range 64 {
		wg.Go(func() {
			owner := dlock.OwnerContext(ctx)
			for range times(30, 200) {
				err := c.Lock(owner, "k")
				if errors.Is(err, dlock.ErrLockAlreadyHeld) {
					continue
				}
				if err != nil {
					t.Error(err)
					return
				}
				if err := c.Lock(owner, "k"); err != nil {
					t.Errorf("re-entry: %v", err)
				}
				if inside.Add(1) != 1 {
					overlaps.Add(1)
				}
				entries.Add(1)
				inside.Add(-1)
				unlockKey(t, c, "k")
				unlockKey(t, c, "k")
			}
		})
	}
	wg.Wait()
	if overlaps.Load() > 0 || entries.Load() == 0 {
		t.Errorf("%d overlaps in %d entries", overlaps.Load(), entries.Load())
	}
	if n := c.Entries(); n != 0 {
		t.Errorf("%d entries are left", n)
	}
}

func TestDo(t *testing.T) {
	virtual(t, func(t *testing.T) {
		c := client(t, memlock.New(), dlock.Config{})
		mine := errors.New("mine")
		wantErr(t, c.Do(ctx, "k", func(context.Context) error { return mine }), mine)
		free(t, c, "k")

		type key struct{}
		parent := context.WithValue(ctx, key{}, "value")
		if err := c.Do(parent, "k", func(ctx context.Context) error {
			if ctx.Value(key{}) != "value" {
				t.Error("the values of the caller's context are gone")
			}
			return nil
		}); err != nil {
			t.Error(err)
		}

		err := c.Do(ctx, "k", func(ctx context.Context) error {
			dlocktest.Lose(t, c, "k")
			<-ctx.Done()
			wantErr(t, context.Cause(ctx), dlock.ErrOwnershipLost)
			return mine
		})
		wantErr(t, err, mine, dlock.ErrOwnershipLost)

		cancelled, cancel := context.WithCancel(ctx)
		err = c.Do(cancelled, "k", func(ctx context.Context) error {
			cancel()
			<-ctx.Done()
			return ctx.Err()
		})
		wantErr(t, err, context.Canceled)
		free(t, c, "k")
	})
}

// A panic is passed on, and the lock is released.
func TestDoReleasesOnPanic(t *testing.T) {
	virtual(t, func(t *testing.T) {
		c := client(t, memlock.New(), dlock.Config{})
		defer func() {
			if r := recover(); r != "ouch" {
				t.Errorf("recovered %v", r)
			}
			free(t, c, "k")
		}()
		_ = c.Do(ctx, "k", func(context.Context) error { panic("ouch") })
		t.Error("the panic was swallowed")
	})
}

// An unconfirmed release is not an error of the work.
func TestDoWithUnconfirmedRelease(t *testing.T) {
	virtual(t, func(t *testing.T) {
		_, faults := faulty(faultdriver.Rule{Op: faultdriver.Release, Fault: faultdriver.LoseRequest})
		c := client(t, faults, dlock.Config{})
		if err := c.Do(ctx, "k", func(context.Context) error { return nil }); err != nil {
			t.Error(err)
		}
		faults.Clear()
		elapse(second)
		free(t, c, "k")
	})
}

func TestWithContext(t *testing.T) {
	virtual(t, func(t *testing.T) {
		c := client(t, memlock.New(), dlock.Config{})
		g := acquire(t, c, "k")
		parent, cancelParent := context.WithCancel(ctx)
		child, cancel := g.WithContext(parent)
		defer cancel()
		grandchild, cancelGrand := context.WithCancel(child)
		defer cancelGrand()
		if got, ok := dlock.FromContext(grandchild); !ok || got != g {
			t.Error("the context does not carry its Guard")
		}
		cancelParent()
		<-grandchild.Done()
		alive(t, g)

		late, cancelLate := g.WithContext(parent) // has ended already
		defer cancelLate()
		wantErr(t, late.Err(), context.Canceled)

		own, cancelOwn := g.WithContext(nil) //nolint:staticcheck // nil is taken for Background
		cancelOwn()
		wantErr(t, own.Err(), context.Canceled)
		alive(t, g)

		other, cancelOther := g.WithContext(ctx)
		defer cancelOther()
		unlock(t, g)
		wantErr(t, other.Err(), context.Canceled)
		if _, ok := dlock.FromContext(ctx); ok {
			t.Error("a Guard in a bare context")
		}
		if _, ok := dlock.FromContext(nil); ok { //nolint:staticcheck // must not panic
			t.Error("a Guard in no context")
		}
		ended(t, g, context.Canceled)
	})
}

// A context with a Guard that has ended carries no lock.
func TestContextOfAGuardThatIsOver(t *testing.T) {
	virtual(t, func(t *testing.T) {
		c := client(t, memlock.New(), dlock.Config{})
		g := acquire(t, c, "k")
		carrying := context.WithoutCancel(g.Context())
		_, err := c.Acquire(carrying, "k")
		wantErr(t, err, dlock.ErrLockAlreadyHeld)
		unlock(t, g)
		again, err := c.Acquire(carrying, "k")
		if err != nil {
			t.Fatal(err)
		}
		unlock(t, again)
	})
}

// A key that is locked under the hold of another key belongs to the owner that the context names,
// not to that hold.
func TestOwnerOutsideAHold(t *testing.T) {
	virtual(t, func(t *testing.T) {
		c := client(t, memlock.New(), dlock.Config{EnableReentrant: true})
		owner := dlock.OwnerContext(ctx)
		g := acquire(t, c, "another")
		inside, cancel := g.WithContext(owner)
		defer cancel()
		lock(t, c, inside, "k")
		lock(t, c, owner, "k")
		wantErr(t, c.Unlock(ctx, "k"), nil)
		wantErr(t, c.Unlock(ctx, "k"), nil)
		free(t, c, "k")
		unlock(t, g)
	})
}

// A permit can be re-entered only with the same limit.
func TestReentryOfAPermit(t *testing.T) {
	virtual(t, func(t *testing.T) {
		c := client(t, memlock.New(), dlock.Config{EnableReentrant: true})
		owner := dlock.OwnerContext(ctx)
		wantErr(t, c.Lock(owner, "k", dlock.WithPermits(2)), nil)
		wantErr(t, c.Lock(owner, "k", dlock.WithPermits(2)), nil)
		wantErr(t, c.Lock(owner, "k", dlock.WithPermits(3)), dlock.ErrInvalidConfig)
		wantErr(t, c.Unlock(ctx, "k"), nil)
		wantErr(t, c.Unlock(ctx, "k"), nil)
		free(t, c, "k")
	})
}
