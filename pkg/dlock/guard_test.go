package dlock_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/faultdriver"
	"github.com/ceyewan/genesis/pkg/dlock/memlock"
)

type nameKey struct{}

// The context of a Guard has the values of the call that acquired it, and its own end.
func TestGuardContextKeepsValues(t *testing.T) {
	virtual(t, func(t *testing.T) {
		for _, batch := range []int{0, 4} {
			c := client(t, memlock.New(), dlock.Config{LocalBatch: batch})
			asked, cancel := context.WithTimeout(context.WithValue(ctx, nameKey{}, "request 7"), time.Minute)
			g, err := c.Acquire(asked, "k")
			if err != nil {
				t.Fatal(err)
			}
			cancel()
			held := g.Context()
			_, dated := held.Deadline()
			if held.Value(nameKey{}) != "request 7" || held.Err() != nil || dated || g.Context() != held {
				t.Errorf("%v, ended by %v, dated %v", held.Value(nameKey{}), held.Err(), dated)
			}
			if carried, ok := dlock.FromContext(held); !ok || carried != g {
				t.Error("the context does not carry its Guard")
			}
			inner, stop := g.WithContext(context.WithValue(ctx, nameKey{}, "other"))
			if inner.Value(nameKey{}) != "other" {
				t.Errorf("a child of another context has %v", inner.Value(nameKey{}))
			}
			bare, end := g.WithContext(ctx)
			if bare.Value(nameKey{}) != nil {
				t.Errorf("a child of a context without values has %v", bare.Value(nameKey{}))
			}
			unlock(t, g)
			if held.Err() == nil || inner.Err() == nil || bare.Err() == nil {
				t.Error("a context outlives its lock")
			}
			stop()
			end()
		}
	})
}

// A Guard under the context of another carries both.
func TestGuardContextKeepsOuterGuard(t *testing.T) {
	virtual(t, func(t *testing.T) {
		c := client(t, memlock.New(), dlock.Config{})
		outer := acquire(t, c, "outer")
		inner, err := c.Acquire(outer.Context(), "inner")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.TryAcquire(inner.Context(), "outer"); !errors.Is(err, dlock.ErrLockAlreadyHeld) {
			t.Errorf("the outer lock, from inside of the inner: %v", err)
		}
		unlock(t, outer)
		if inner.Context().Err() != nil {
			t.Error("the inner lock ends with the outer one")
		}
	})
}

// Err returns whether a lock is held, and otherwise why not.
func TestGuardErr(t *testing.T) {
	virtual(t, func(t *testing.T) {
		c := client(t, memlock.New(), dlock.Config{})
		released, lost, closed := acquire(t, c, "a"), acquire(t, c, "b", dlock.WithTTL(time.Second), dlock.WithoutRenewal()), acquire(t, c, "c")
		for _, g := range []*dlock.Guard{released, lost, closed} {
			if err := g.Err(); err != nil {
				t.Errorf("%s is held: %v", g.Key(), err)
			}
		}
		unlock(t, released)
		time.Sleep(time.Second)
		_ = c.Close() // its error for the lost lock does not matter here
		var zero dlock.Guard
		for g, want := range map[*dlock.Guard]error{released: dlock.ErrLockNotHeld, lost: dlock.ErrOwnershipLost, closed: dlock.ErrClosed, &zero: dlock.ErrLockNotHeld} {
			var named *dlock.Error
			if err := g.Err(); !errors.Is(err, want) || !errors.As(err, &named) || named.Key != g.Key() {
				t.Errorf("%q: %v, want %v", g.Key(), err, want)
			}
		}
	})
}

// UnlockInto releases the lock, and adds its error to that of the function.
func TestUnlockInto(t *testing.T) {
	virtual(t, func(t *testing.T) {
		c := client(t, memlock.New(), dlock.Config{})
		mine := errors.New("mine")
		work := func(lose bool, result error) (err error) {
			g := acquire(t, c, "k", dlock.WithTTL(time.Second), dlock.WithoutRenewal())
			defer dlock.UnlockInto(&err, g)
			if lose {
				time.Sleep(time.Second)
			}
			return result
		}
		if err := work(false, nil); err != nil {
			t.Error(err)
		}
		if err := work(false, mine); err != mine { //nolint:errorlint // as it was returned
			t.Error(err)
		}
		if err := work(true, mine); !errors.Is(err, mine) || !errors.Is(err, dlock.ErrOwnershipLost) {
			t.Error(err)
		}
		g := acquire(t, c, "k")
		dlock.UnlockInto(nil, g)
		if !errors.Is(g.Err(), dlock.ErrLockNotHeld) {
			t.Errorf("it is still held: %v", g.Err())
		}
	})
}

// RenewInterval counts from the acquisition on, not only from the first renewal.
func TestFirstRenewalAfterRenewInterval(t *testing.T) {
	virtual(t, func(t *testing.T) {
		faults := faultdriver.New(memlock.New(), 1)
		c := client(t, faults, dlock.Config{DefaultTTL: time.Minute, RenewInterval: time.Second})
		g := acquire(t, c, "k")
		elapse(3500 * time.Millisecond)
		if n := faults.Calls(faultdriver.Renew); n < 3 {
			t.Errorf("%d renewals after 3.5 s", n)
		}
		unlock(t, g)
	})
}
