package dlock_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/memlock"
)

// doubtful is a backend whose first attempt is not answered, and whose driver must not reuse the ID
// of that claim: it calls lost. It counts attempts; next answers the later ones.
func doubtful(attempts *int, lost func(), next func() (driver.State, error)) *scripted {
	remote := func(c *driver.Caps) { c.Remote = true }
	return &scripted{Opener: memlock.New(), caps: remote, acquire: func(context.Context, driver.Driver, driver.Request) (driver.State, error) {
		*attempts++
		switch *attempts {
		case 1:
			return driver.State{}, errReset
		case 2:
			lost()
			return driver.State{Phase: driver.Gone}, nil
		}
		return next()
	}}
}

var errReset = errors.New("connection reset")

// batches runs a test with separate claims and with shared claims.
func batches(t *testing.T, test func(t *testing.T, batch int)) {
	for _, batch := range []int{0, 4} {
		t.Run(fmt.Sprint("LocalBatch ", batch), func(t *testing.T) {
			virtual(t, func(t *testing.T) { test(t, batch) })
		})
	}
}

// A call whose context ends after a claim with an unknown outcome returns both errors.
func TestContextEndsAfterAClaimInDoubt(t *testing.T) {
	batches(t, func(t *testing.T, batch int) {
		limit, cancel := context.WithCancel(ctx)
		defer cancel()
		attempts := 0
		c := client(t, doubtful(&attempts, func() { time.AfterFunc(time.Nanosecond, cancel) }, nil), dlock.Config{LocalBatch: batch})
		err := c.Lock(limit, "k")
		if attempts != 2 || !errors.Is(err, context.Canceled) || !errors.Is(err, dlock.ErrUnknownOutcome) || errors.Is(err, dlock.ErrLockHeldByOther) {
			t.Errorf("after %d attempts: %v", attempts, err)
		}
	})
}

// unreachable is the answer of a backend that could not be reached.
func unreachable() (driver.State, error) {
	return driver.State{}, driver.Classify(driver.ErrUnavailable, driver.Transient)
}

// If later attempts do not reach the backend, the outcome of the first is still unknown.
func TestUnavailableAfterAClaimInDoubt(t *testing.T) {
	batches(t, func(t *testing.T, batch int) {
		attempts := 0
		c := client(t, doubtful(&attempts, func() {}, unreachable), dlock.Config{LocalBatch: batch})
		err := c.Lock(ctx, "k", dlock.WithWait(5*time.Second))
		if attempts < 3 || !errors.Is(err, dlock.ErrUnknownOutcome) || errors.Is(err, dlock.ErrUnavailable) {
			t.Errorf("after %d attempts: %v", attempts, err)
		}
	})
}

// A wait that ends between two claims is not known to have been behind a holder.
func TestWaitEndsAfterAClaimInDoubt(t *testing.T) {
	batches(t, func(t *testing.T, batch int) {
		attempts := 0
		c := client(t, doubtful(&attempts, func() {}, unreachable), dlock.Config{LocalBatch: batch, RetryInterval: time.Second})
		err := c.Lock(ctx, "k", dlock.WithWait(1500*time.Millisecond))
		if attempts != 2 || !errors.Is(err, dlock.ErrUnknownOutcome) || errors.Is(err, dlock.ErrLockHeldByOther) {
			t.Errorf("after %d attempts: %v", attempts, err)
		}
	})
}

// A claim that was answered has a place, even if an earlier attempt was not answered: a caller that
// loses this place when its wait ends was behind a holder.
func TestLostPlaceOfAnAnsweredClaim(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := memlock.New()
		acquire(t, client(t, store, dlock.Config{}), "k")
		events := make(chan driver.Event, 1)
		attempts, evicted, begun := 0, false, time.Now()
		c := client(t, &scripted{
			Opener: store, caps: func(c *driver.Caps) { c.Remote = true }, events: events,
			acquire: func(ctx context.Context, d driver.Driver, r driver.Request) (driver.State, error) {
				attempts++
				if attempts == 1 {
					return driver.State{}, errReset
				}
				time.AfterFunc(2*time.Second-time.Millisecond-time.Since(begun), func() {
					evicted = true
					events <- driver.Event{Key: "k", ID: r.ID, State: driver.State{Phase: driver.Gone}}
				})
				return d.Acquire(ctx, r)
			},
			renew: func(ctx context.Context, d driver.Driver, refs []driver.Ref) ([]driver.State, error) {
				if evicted {
					return []driver.State{{Phase: driver.Gone}}, nil
				}
				return d.Renew(ctx, refs)
			},
		}, dlock.Config{})
		err := c.Lock(ctx, "k", dlock.WithWait(2*time.Second))
		if attempts != 2 || !evicted || !errors.Is(err, dlock.ErrLockHeldByOther) || errors.Is(err, dlock.ErrUnknownOutcome) {
			t.Errorf("after %d attempts, evicted %v: %v", attempts, evicted, err)
		}
	})
}
