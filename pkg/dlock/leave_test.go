package dlock_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/faultdriver"
	"github.com/ceyewan/genesis/pkg/dlock/memlock"
)

// wantFree checks when a key becomes free: the lease counts from the last call that set it.
func wantFree(t *testing.T, c *dlock.Client, key string, at time.Time) {
	t.Helper()
	if _, err := c.Acquire(ctx, key, dlock.WithWait(0)); !errors.Is(err, dlock.ErrLockHeldByOther) {
		t.Errorf("%s before the end of its lease: %v", key, err)
	}
	g := acquire(t, c, key)
	if !time.Now().Equal(at) {
		t.Errorf("%s is free %v after the end of its lease", key, time.Since(at))
	}
	unlock(t, g)
}

// A lock that was left stays locked until its lease ends, also after Close.
func TestLeave(t *testing.T) {
	virtual(t, func(t *testing.T) {
		for _, closes := range []bool{false, true} {
			store := memlock.New()
			faults := faultdriver.New(store, 1)
			c, other := client(t, faults, dlock.Config{}), client(t, store, dlock.Config{})
			g := acquire(t, c, "k", dlock.WithTTL(time.Minute), dlock.WithoutRenewal())
			end, held := time.Now().Add(time.Minute), g.Context()
			elapse(7 * second)
			for _, op := range []faultdriver.Op{faultdriver.Acquire, faultdriver.Renew, faultdriver.Release} {
				faults.Add(faultdriver.Rule{Op: op, Fault: faultdriver.Fail}) // it makes no call
			}
			if err := g.Leave(); err != nil {
				t.Fatal(err)
			}
			if held.Err() == nil || g.Remaining() != 0 || !errors.Is(g.Err(), dlock.ErrLockNotHeld) {
				t.Errorf("the Guard has not ended: %v, %v", held.Err(), g.Err())
			}
			for what, err := range map[string]error{"Unlock": g.Unlock(ctx), "Leave": g.Leave(), "Extend": g.Extend(ctx, time.Minute)} {
				if !errors.Is(err, dlock.ErrLockNotHeld) {
					t.Errorf("%s afterwards: %v", what, err)
				}
			}
			if closes {
				if err := c.Close(); err != nil {
					t.Error(err)
				}
			}
			wantFree(t, other, "k", end)
		}
	})
}

// What cannot be left is still held after the error.
func TestLeaveIsRefused(t *testing.T) {
	virtual(t, func(t *testing.T) {
		renewed := acquire(t, client(t, memlock.New(), dlock.Config{}), "k")
		leaseless := acquire(t, client(t, leaseless(), dlock.Config{}), "k", dlock.WithoutRenewal())
		for _, g := range []*dlock.Guard{renewed, leaseless} {
			if err := g.Leave(); !errors.Is(err, dlock.ErrUnsupported) {
				t.Errorf("leaving it: %v", err)
			}
			alive(t, g)
			unlock(t, g)
		}
		if err := (&dlock.Guard{}).Leave(); !errors.Is(err, dlock.ErrLockNotHeld) {
			t.Errorf("leaving a zero Guard: %v", err)
		}
	})
}

// A lock whose validity has ended is lost, but the rest of its lease is not given up: neither by Leave nor by Close.
func TestLeaveAfterItsValidity(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := memlock.New()
		c, other := client(t, store, dlock.Config{}), client(t, store, dlock.Config{})
		g := acquire(t, c, "k", dlock.WithTTL(time.Minute), dlock.WithoutRenewal())
		end := time.Now().Add(time.Minute)
		elapse(58 * second) // the margin is three seconds
		if err := g.Leave(); !errors.Is(err, dlock.ErrOwnershipLost) {
			t.Errorf("leaving it after its validity: %v", err)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		wantFree(t, other, "k", end)
	})
}

// Extend decides how long a lock stays that is left afterwards.
func TestLeaveAfterExtend(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := memlock.New()
		c, other := client(t, store, dlock.Config{}), client(t, store, dlock.Config{})
		for _, ttl := range []time.Duration{10 * second, time.Hour} {
			g := acquire(t, c, "k", dlock.WithTTL(time.Minute), dlock.WithoutRenewal())
			elapse(7 * second)
			if err := g.Extend(ctx, ttl); err != nil {
				t.Fatal(err)
			}
			end := time.Now().Add(ttl)
			if err := g.Leave(); err != nil {
				t.Fatal(err)
			}
			wantFree(t, other, "k", end)
		}
	})
}

// A keyed lock that was left can be locked again when its lease has ended.
func TestLeaveOfAKeyedLock(t *testing.T) {
	virtual(t, func(t *testing.T) {
		c := client(t, memlock.New(), dlock.Config{})
		if err := c.Lock(ctx, "k", dlock.WithTTL(time.Minute), dlock.WithoutRenewal()); err != nil {
			t.Fatal(err)
		}
		g, _ := c.Held("k")
		if err := g.Leave(); err != nil {
			t.Fatal(err)
		}
		if err := c.Unlock(ctx, "k"); !errors.Is(err, dlock.ErrLockNotHeld) {
			t.Errorf("Unlock after Leave: %v", err)
		}
		start := time.Now()
		if err := c.Lock(ctx, "k"); err != nil || time.Since(start) != time.Minute {
			t.Errorf("locked again after %v: %v", time.Since(start), err)
		}
		unlockKey(t, c, "k")
	})
}

// A keyed lock that is left after its loss needs no Unlock: the key can be locked again. A lock that cannot be left still
// belongs to its key.
func TestLeaveOfALostKeyedLock(t *testing.T) {
	virtual(t, func(t *testing.T) {
		c := client(t, memlock.New(), dlock.Config{})
		if err := c.Lock(ctx, "k", dlock.WithTTL(time.Minute), dlock.WithoutRenewal()); err != nil {
			t.Fatal(err)
		}
		g, _ := c.Held("k")
		elapse(2 * time.Minute)
		if err := g.Leave(); !errors.Is(err, dlock.ErrOwnershipLost) {
			t.Errorf("leaving it: %v", err)
		}
		if err := c.Lock(ctx, "k"); err != nil {
			t.Fatal(err)
		}
		g, _ = c.Held("k")
		if err := g.Leave(); !errors.Is(err, dlock.ErrUnsupported) {
			t.Errorf("leaving a renewed lock: %v", err)
		}
		unlockKey(t, c, "k")
	})
}

// The push of a grant that is repeated after Leave does not release the lock.
func TestLatePushAfterLeave(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store, events := memlock.New(), make(chan driver.Event, 1)
		var id string
		c := client(t, &scripted{
			Opener: store, events: events,
			acquire: func(ctx context.Context, d driver.Driver, r driver.Request) (driver.State, error) {
				id = r.ID
				return d.Acquire(ctx, r)
			},
		}, dlock.Config{})
		other := client(t, store, dlock.Config{})
		before := acquire(t, other, "k")
		granted := make(chan *dlock.Guard, 1)
		go func() { granted <- acquire(t, c, "k", dlock.WithTTL(time.Minute), dlock.WithoutRenewal()) }()
		elapse(second)
		unlock(t, before)
		g := <-granted
		wantErr(t, g.Extend(ctx, time.Minute)) // it had a waiter's lease
		end := time.Now().Add(time.Minute)
		if err := g.Leave(); err != nil {
			t.Fatal(err)
		}
		events <- driver.Event{Key: "k", ID: id, State: driver.State{Phase: driver.Held, Token: g.Token()}}
		synctest.Wait()
		wantFree(t, other, "k", end)
	})
}

// A lock that was left is logged and measured as such, and never as lost.
func TestLeaveIsReported(t *testing.T) {
	virtual(t, func(t *testing.T) {
		o := observe(t)
		c := o.client(t, memlock.New(), dlock.Config{})
		g := acquire(t, c, "order:123", dlock.WithTTL(time.Minute), dlock.WithoutRenewal())
		elapse(second)
		if err := g.Leave(); err != nil {
			t.Fatal(err)
		}
		o.want(t, "dlock.hold.duration", "end", "left", 1)
		o.want(t, "dlock.held", "", "", 0)
		elapse(time.Hour)
		o.want(t, "dlock.losses", "reason", "not_renewed", 0)
		text := strings.Join(o.lines(), "\n")
		if !strings.Contains(text, `msg="lock left"`) || !strings.Contains(text, "hold=1s lease=59s") || strings.Contains(text, "WARN") {
			t.Error(text)
		}
	})
}
