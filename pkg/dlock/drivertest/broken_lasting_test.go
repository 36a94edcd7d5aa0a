package drivertest_test

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// Backends that keep a promise for some claims only: for holders and not for waiters, for one
// and not for two, for small batches and not for big ones.
func init() {
	for name, b := range map[string]brokenBackend{
		"big batches answered backwards": {"BigBatch", func(b backend) driver.Driver { return &backwards{b} }},
		"big batches renew holders only": {"BigBatch", func(b backend) driver.Driver { return &holdersFirst{b} }},
		"a waiter filed again is not restarted": {"FilingRestarts", func(b backend) driver.Driver {
			return &placeKeeper{backend: b, ahead: map[string]int{}}
		}},
		"filing again keeps the first TTL": {"FilingRestarts", func(b backend) driver.Driver {
			return &conservative{backend: b, first: map[string]time.Duration{}}
		}},
		"leases of readers are cut":     {"UntilIsPessimistic", func(b backend) driver.Driver { return &cheater{b} }},
		"bars of holders end early":     {"BarLasts", func(b backend) driver.Driver { return &hurriedBars{backend: b, of: driver.Held} }},
		"bars of waiters end early":     {"BarLasts", func(b backend) driver.Driver { return &hurriedBars{backend: b, of: driver.Queued} }},
		"only the last ID is barred":    {"BarLasts", func(b backend) driver.Driver { return &singleBar{b} }},
		"bars do not count in a queue":  {"BarredID", func(b backend) driver.Driver { return &sideDoor{b} }},
		"renewed leases are overstated": {"UntilIsPessimistic", func(b backend) driver.Driver { return &flatterer{b} }},
	} {
		broken[name] = b
	}
}

// isBig says that a batch is larger than a script or a transaction might take.
func isBig(refs []driver.Ref) bool { return len(refs) > 64 }

// backwards answers a big batch from its end.
type backwards struct{ backend }

func (b *backwards) Renew(ctx context.Context, refs []driver.Ref) ([]driver.State, error) {
	states, err := b.backend.Renew(ctx, refs)
	if isBig(refs) {
		slices.Reverse(states)
	}
	return states, err
}

// holdersFirst only looks at the waiters of a big batch.
type holdersFirst struct{ backend }

func (b *holdersFirst) Renew(ctx context.Context, refs []driver.Ref) ([]driver.State, error) {
	if !isBig(refs) {
		return b.backend.Renew(ctx, refs)
	}
	states := make([]driver.State, len(refs))
	for i, r := range refs {
		states[i] = b.phase(ctx, r)
		if states[i].Phase != driver.Held {
			continue
		}
		one, err := b.backend.Renew(ctx, refs[i:i+1])
		if err != nil {
			return nil, err
		}
		states[i] = one[0]
	}
	return states, nil
}

func (b *holdersFirst) phase(ctx context.Context, r driver.Ref) driver.State {
	claims, _ := b.Inspect(ctx, r.Key)
	for _, c := range claims {
		if c.ID == r.ID {
			return driver.State{Phase: c.Phase, Until: time.Now().Add(driver.Heartbeat(r.TTL))}
		}
	}
	return driver.State{Phase: driver.Gone}
}

// placeKeeper tells a waiter that asks again its place, and leaves its deadline.
type placeKeeper struct {
	backend
	ahead map[string]int
}

func (b *placeKeeper) Acquire(ctx context.Context, r driver.Request) (driver.State, error) {
	if ahead, ok := b.ahead[r.ID]; ok {
		return driver.State{Phase: driver.Queued, Ahead: ahead, Until: time.Now().Add(driver.Heartbeat(r.TTL))}, nil
	}
	st, err := b.backend.Acquire(ctx, r)
	if st.Phase == driver.Queued {
		b.ahead[r.ID] = st.Ahead
	}
	return st, err
}

// conservative stores the TTL that a claim was first filed with, and tells of the last one.
type conservative struct {
	backend
	first map[string]time.Duration
}

func (b *conservative) Acquire(ctx context.Context, r driver.Request) (driver.State, error) {
	asked := r.TTL
	if ttl, ok := b.first[r.ID]; ok {
		r.TTL = ttl
	}
	b.first[r.ID] = r.TTL
	st, err := b.backend.Acquire(ctx, r)
	if st.Phase == driver.Held {
		st.Until = time.Now().Add(asked)
	}
	return st, err
}

// cheater gives half a lease to those who share a key, and tells of a whole one.
type cheater struct{ backend }

func (b *cheater) Acquire(ctx context.Context, r driver.Request) (driver.State, error) {
	asked := r.TTL
	if r.Mode != driver.Exclusive {
		r.TTL /= 2
	}
	st, err := b.backend.Acquire(ctx, r)
	if st.Phase == driver.Held {
		st.Until = time.Now().Add(asked)
	}
	return st, err
}

// flatterer counts a renewal from its answer.
type flatterer struct{ backend }

func (b *flatterer) Renew(ctx context.Context, refs []driver.Ref) ([]driver.State, error) {
	states, err := b.backend.Renew(ctx, refs)
	for i := range states {
		states[i].Until = states[i].Until.Add(20 * time.Millisecond)
	}
	return states, err
}

// hurriedBars keeps the bars of claims that were found in one phase for a second.
type hurriedBars struct {
	backend
	of driver.Phase
}

// barEnds are when the bars of hurriedBars end, by ID, and lastBars the IDs of singleBar, by
// key: for all drivers of a store.
var barEnds, lastBars sync.Map

func (b *hurriedBars) Release(ctx context.Context, r driver.Ref) (driver.State, error) {
	bar := r
	r.Unsettled = false
	st, err := b.backend.Release(ctx, r)
	switch {
	case err != nil || !bar.Unsettled:
	case st.Phase == b.of:
		barEnds.Store(r.ID, time.Now().Add(time.Second))
	default:
		_, err = b.backend.Release(ctx, bar)
	}
	return st, err
}

func (b *hurriedBars) Acquire(ctx context.Context, r driver.Request) (driver.State, error) {
	end, ok := barEnds.Load(r.ID)
	if ok && time.Now().Before(end.(time.Time)) { //nolint:forcetypeassert // nothing else is stored
		return driver.State{Phase: driver.Gone}, nil
	}
	return b.backend.Acquire(ctx, r)
}

// singleBar has room for one bar of a key.
type singleBar struct{ backend }

func (b *singleBar) Release(ctx context.Context, r driver.Ref) (driver.State, error) {
	if r.Unsettled {
		lastBars.Store(r.Key, r.ID)
	}
	r.Unsettled = false
	return b.backend.Release(ctx, r)
}

func (b *singleBar) Acquire(ctx context.Context, r driver.Request) (driver.State, error) {
	if id, _ := lastBars.Load(r.Key); id == r.ID {
		return driver.State{Phase: driver.Gone}, nil
	}
	return b.backend.Acquire(ctx, r)
}

// sideDoor queues a barred ID that finds others waiting.
type sideDoor struct{ backend }

func (b *sideDoor) Acquire(ctx context.Context, r driver.Request) (driver.State, error) {
	st, err := b.backend.Acquire(ctx, r)
	if err != nil || st.Phase != driver.Gone || !r.Wait {
		return st, err
	}
	claims, _ := b.Inspect(ctx, r.Key)
	if len(claims) < 2 {
		return st, nil
	}
	r.ID += "again"
	return b.backend.Acquire(ctx, r)
}
