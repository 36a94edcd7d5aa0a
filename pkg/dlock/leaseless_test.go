package dlock_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/memlock"
)

// leaseless is a backend whose locks end only when they are released, like file locks.
func leaseless() *scripted {
	const forever = 24 * time.Hour
	noUntil := func(st driver.State, err error) (driver.State, error) {
		st.Until = time.Time{}
		return st, err
	}
	return &scripted{
		Opener: memlock.New(), caps: func(c *driver.Caps) { c.Lease = false },
		acquire: func(ctx context.Context, d driver.Driver, r driver.Request) (driver.State, error) {
			r.TTL = forever
			return noUntil(d.Acquire(ctx, r))
		},
		renew: func(ctx context.Context, d driver.Driver, refs []driver.Ref) ([]driver.State, error) {
			long := append([]driver.Ref(nil), refs...)
			for i := range long {
				long[i].TTL = forever
			}
			states, err := d.Renew(ctx, long)
			for i := range states {
				states[i].Until = time.Time{}
			}
			return states, err
		},
	}
}

func TestBackendWithoutLease(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := leaseless()
		c, other := client(t, store, dlock.Config{}), client(t, store, dlock.Config{})
		g := acquire(t, c, "k", dlock.WithTTL(second), dlock.WithoutRenewal())
		elapse(time.Hour)
		alive(t, g)
		if err := g.Extend(ctx, time.Minute); err != nil {
			t.Error(err)
		}
		got := async(func() *dlock.Guard { return acquire(t, other, "k") })
		synctest.Wait()
		unlock(t, g)
		unlock(t, <-got)

		start := time.Now()
		g = acquire(t, c, "k", dlock.WithMaxHold(7*second))
		h := acquire(t, other, "k") // no lease would free it, so the maximum hold must
		if took := time.Since(start); took != 7*second {
			t.Errorf("free after %v of 7s", took)
		}
		ended(t, g, dlock.ErrOwnershipLost)
		unlock(t, h)

		g = acquire(t, c, "k", dlock.WithMinHold(time.Minute))
		unlock(t, g)
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		acquire(t, other, "k", dlock.WithWait(0))
	})
}

// An event without ID means that others were lost: everything is renewed, except for locks without
// renewal.
func TestMissedPushes(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store, events := memlock.New(), make(chan driver.Event, 1)
		c := client(t, &scripted{Opener: store, events: events}, dlock.Config{})
		other := client(t, store, dlock.Config{})
		fixed := acquire(t, c, "fixed", dlock.WithoutRenewal())
		evicted := acquire(t, c, "evicted")
		g := acquire(t, other, "k")
		got := async(func() *dlock.Guard { return acquire(t, c, "k") })
		elapse(100 * time.Millisecond)
		unlock(t, g)
		a, err := other.Admin()
		if err != nil {
			t.Fatal(err)
		}
		if err := a.Evict(ctx, "evicted", evicted.Token()); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		events <- driver.Event{}
		h := <-got
		synctest.Wait()
		ended(t, evicted, dlock.ErrOwnershipLost)
		if took := time.Since(start); took > 10*time.Millisecond {
			t.Errorf("noticed after %v", took)
		}
		if left := fixed.Remaining(); left > 9400*time.Millisecond {
			t.Errorf("a lock without renewal has %v left", left)
		}
		// A push for another Client, or without news, changes nothing.
		events <- driver.Event{Key: "k", ID: "of another claim", State: driver.State{Phase: driver.Gone}}
		events <- driver.Event{Key: "k", State: driver.State{Phase: driver.Held}}
		synctest.Wait()
		alive(t, h)
	})
}
