package dlock_test

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/faultdriver"
	"github.com/ceyewan/genesis/pkg/dlock/filelock"
	"github.com/ceyewan/genesis/pkg/dlock/memlock"
)

// A waiter that gave up is removed when its call returns: after the holder's Unlock the key is free
// for the next caller, and is not first granted to the waiter that has gone.
func TestWaiterThatGaveUpIsGone(t *testing.T) {
	for name, cfg := range map[string]dlock.Config{"alone": {}, "LocalBatch": {LocalBatch: 8}} {
		t.Run("memory "+name, func(t *testing.T) {
			virtual(t, func(t *testing.T) { leavesNoGhost(t, memlock.New(), cfg) })
		})
		t.Run("file "+name, func(t *testing.T) { // its watcher of files stops virtual time
			if testenv.UnderStress(true, false) { // a stall must not end a withdrawal
				dlock.SetWithdrawTimeout(t, time.Minute)
			}
			leavesNoGhost(t, filelock.New(filepath.Join(t.TempDir(), "locks")), cfg)
		})
	}
}

func leavesNoGhost(t *testing.T, store driver.Opener, cfg dlock.Config) {
	t.Helper()
	wantNoneRefused(t, client(t, store, dlock.Config{}), client(t, store, cfg), client(t, store, dlock.Config{}))
}

// wantNoneRefused repeats survivesWaiter.
func wantNoneRefused(t *testing.T, holder, waiter, third *dlock.Client) {
	t.Helper()
	refused, took := 0, make([]time.Duration, 100)
	for i := range took {
		var got bool
		if got, took[i] = survivesWaiter(t, holder, waiter, third); !got {
			refused++
		}
	}
	if refused > 0 {
		t.Errorf("%d of 100 attempts at a free key were refused", refused)
	}
	slices.Sort(took)
	if most := testenv.UnderStress(150*time.Millisecond, 20*time.Millisecond); took[50] > most { // stalls do not delay half of them
		t.Errorf("half of the waiters gave up only after %v", took[50])
	}
}

// survivesWaiter makes a call wait for a lock and give up, and reports whether another call gets
// the lock when it is unlocked, and how long the first call took.
func survivesWaiter(t *testing.T, holder, waiter, third *dlock.Client) (got bool, took time.Duration) {
	t.Helper()
	ctx := t.Context()
	g, err := holder.Acquire(ctx, "k")
	if err != nil {
		t.Fatal(err)
	}
	wait, cancel := context.WithTimeout(ctx, time.Millisecond)
	defer cancel()
	began := time.Now()
	if _, err := waiter.Acquire(wait, "k"); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("the waiter: %v", err)
	}
	took = time.Since(began)
	if err := g.Unlock(ctx); err != nil {
		t.Fatal(err)
	}
	got, err = third.TryLock(ctx, "k")
	if err != nil {
		t.Fatal(err)
	}
	if !got {
		if err := third.Lock(ctx, "k"); err != nil {
			t.Fatal(err)
		}
	}
	if err := third.Unlock(ctx, "k"); err != nil {
		t.Fatal(err)
	}
	return got, took
}

// On a remote backend the withdrawal continues after the call has returned. A later call of the
// same Client for the same key waits for it.
func TestLaterCallComesAfterWithdrawal(t *testing.T) {
	for name, cfg := range map[string]dlock.Config{"alone": {}, "LocalBatch": {LocalBatch: 8}} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T) {
				store, faults := faulty(faultdriver.Rule{Op: faultdriver.Release, Fault: faultdriver.Delay, Delay: time.Millisecond})
				holder, c := client(t, store, dlock.Config{}), client(t, faults, cfg)
				wantNoneRefused(t, holder, c, c)
			})
		})
	}
}

// A release that hangs delays a later call only briefly, and no call for another key.
func TestHungWithdrawalDelaysLittle(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store, faults := faulty(faultdriver.Rule{Op: faultdriver.Release, Fault: faultdriver.LoseRequest, Hang: true})
		holder, c := client(t, store, dlock.Config{}), client(t, faults, dlock.Config{})
		g := acquire(t, holder, "k")
		wait, cancel := context.WithTimeout(ctx, time.Millisecond)
		defer cancel()
		_, err := c.Acquire(wait, "k")
		wantErr(t, err, context.DeadlineExceeded)
		began := time.Now()
		_ = acquire(t, c, "other")
		if took := time.Since(began); took > 0 {
			t.Errorf("another key: %v", took)
		}
		for limit, opts := range map[time.Duration][]dlock.LockOption{
			200 * time.Millisecond: {dlock.WithWait(0)}, 20 * time.Millisecond: {dlock.WithWait(20 * time.Millisecond)},
		} {
			began := time.Now()
			_, err := c.Acquire(ctx, "k", opts...)
			if took := time.Since(began); took > limit || err == nil {
				t.Errorf("took %v of %v: %v", took, limit, err)
			}
		}
		unlock(t, g)
	})
}
