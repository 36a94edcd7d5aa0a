package mutant

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// Mutants that leave something behind, or do not hear.

// noCleanup forgets attempts that were not answered instead of cleaning them up.
func noCleanup(Servers, *memory) hooks {
	return hooks{release: func(ctx context.Context, d driver.Driver, r driver.Ref) (driver.State, error) {
		if r.Unanswered {
			return driver.State{Phase: driver.Gone}, nil
		}
		return d.Release(ctx, r)
	}}
}

// noTombstone cleans such attempts up without a thought for one that is still on its way.
func noTombstone(Servers, *memory) hooks {
	return hooks{release: func(ctx context.Context, d driver.Driver, r driver.Ref) (driver.State, error) {
		r.Unanswered = false
		return d.Release(ctx, r)
	}}
}

// deadContext cleans up under the context of the caller, which has ended.
func deadContext(_ Servers, m *memory) hooks {
	return hooks{
		acquire: func(ctx context.Context, d driver.Driver, r driver.Request) (driver.State, error) {
			m.of(r.ID, func(c *remembered) { c.ctx = ctx })
			return d.Acquire(ctx, r)
		},
		release: func(ctx context.Context, d driver.Driver, r driver.Ref) (driver.State, error) {
			if c := m.of(r.ID, nil); c.ctx != nil && c.ctx.Err() != nil && r.Unanswered {
				return driver.State{}, driver.Classify(c.ctx.Err(), driver.Fatal)
			}
			return d.Release(ctx, r)
		},
	}
}

// idPerAttempt takes a new ID for every attempt, so that a repeated one is a stranger
// to the first.
func idPerAttempt(_ Servers, m *memory) hooks {
	stored := func(r driver.Ref) driver.Ref {
		r.ID = m.of(r.ID, nil).id
		return r
	}
	return hooks{
		acquire: func(ctx context.Context, d driver.Driver, r driver.Request) (driver.State, error) {
			fresh := newID()
			m.rename(r.ID, fresh)
			r.ID = fresh
			return d.Acquire(ctx, r)
		},
		renew: func(ctx context.Context, d driver.Driver, refs []driver.Ref) ([]driver.State, error) {
			mine := make([]driver.Ref, len(refs))
			for i, r := range refs {
				mine[i] = stored(r)
			}
			return d.Renew(ctx, mine)
		},
		release: func(ctx context.Context, d driver.Driver, r driver.Ref) (driver.State, error) {
			return d.Release(ctx, stored(r))
		},
		hear: m.original,
	}
}

func newID() string {
	var raw [16]byte
	_, _ = rand.Read(raw[:])
	return hex.EncodeToString(raw[:])
}

// falseBusy takes an attempt without an answer for one that found the lock taken.
func falseBusy(Servers, *memory) hooks {
	return hooks{acquire: func(ctx context.Context, d driver.Driver, r driver.Request) (driver.State, error) {
		st, err := d.Acquire(ctx, r)
		if err != nil {
			return driver.State{Phase: driver.Gone}, nil //nolint:nilerr // this is what is wrong with it
		}
		return st, nil
	}}
}

// lazyRelease says that a lock is released and lets its lease run out.
func lazyRelease(Servers, *memory) hooks {
	return hooks{release: func(context.Context, driver.Driver, driver.Ref) (driver.State, error) {
		return driver.State{Phase: driver.Held}, nil
	}}
}

// hintsOnly has waiters wait for a push, and never ask.
func hintsOnly(_ Servers, m *memory) hooks {
	return hooks{
		acquire: func(ctx context.Context, d driver.Driver, r driver.Request) (driver.State, error) {
			st, err := d.Acquire(ctx, r)
			m.of(r.ID, func(c *remembered) { c.phase = st.Phase })
			st.Recheck = 0
			return st, err
		},
		renew: func(ctx context.Context, d driver.Driver, refs []driver.Ref) ([]driver.State, error) {
			states, err := d.Renew(ctx, refs)
			for i, st := range states {
				if m.of(refs[i].ID, nil).phase == driver.Queued && st.Phase == driver.Held {
					states[i] = driver.State{Phase: driver.Queued, Ahead: 1, Until: time.Now().Add(driver.Heartbeat(refs[i].TTL))}
				}
				states[i].Recheck = 0
			}
			return states, err
		},
		hear: func(ev driver.Event) (driver.Event, bool) {
			if ev.State.Phase == driver.Held {
				m.of(ev.ID, func(c *remembered) { c.phase = driver.Held })
			}
			return ev, true
		},
	}
}

// releasesOnce does not repeat a release that failed.
func releasesOnce(Servers, *memory) hooks {
	return hooks{release: func(ctx context.Context, d driver.Driver, r driver.Ref) (driver.State, error) {
		st, err := d.Release(ctx, r)
		if err != nil {
			return driver.State{Phase: driver.Held}, nil //nolint:nilerr // this is what is wrong with it
		}
		return st, nil
	}}
}
