package drivertest_test

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// Backends that keep a promise only for some claims: for holders but not for waiters, for one but
// not for two, for small batches but not for big ones.
func init() {
	for name, b := range map[string]brokenBackend{
		"big batches answered backwards": {"BigBatch", func(b backend) driver.Driver { return &backwards{b} }},
		"big batches renew holders only": {"BigBatch", func(b backend) driver.Driver { return &holdersFirst{b} }},
		"big batches are slow and renew holders only": {"BigBatch", func(b backend) driver.Driver {
			return &slowBatches{&holdersFirst{b}}
		}},
		"big batches take most of a heartbeat": {"BigBatch", func(b backend) driver.Driver { return &slowBatches{b} }},
		"a holder submitted again is not restarted": {"ResubmissionRestarts", func(b backend) driver.Driver {
			return &lapser{backend: b, phase: driver.Held, ttl: map[string]time.Duration{}}
		}},
		"a waiter submitted again is queued anew": {"ResubmissionRestarts", func(b backend) driver.Driver {
			return &lapser{backend: b, phase: driver.Queued, ttl: map[string]time.Duration{}}
		}},
		"late waiters behind a living one come back": {"LateWaiter", func(b backend) driver.Driver {
			return &forbearing{backend: b, waiters: map[string]driver.Request{}}
		}},
		"a waiter submitted again is not restarted": {"ResubmissionRestarts", func(b backend) driver.Driver {
			return &placeKeeper{backend: b, ahead: map[string]int{}}
		}},
		"submitting again keeps the first TTL": {"ResubmissionRestarts", func(b backend) driver.Driver {
			return &conservative{backend: b, first: map[string]time.Duration{}}
		}},
		"leases of readers are cut":          {"UntilIsPessimistic", func(b backend) driver.Driver { return &cheater{b} }},
		"tombstones of holders end early":    {"TombstoneLasts", func(b backend) driver.Driver { return &shortTombstones{backend: b, of: driver.Held} }},
		"tombstones of waiters end early":    {"TombstoneLasts", func(b backend) driver.Driver { return &shortTombstones{backend: b, of: driver.Queued} }},
		"only the last ID has a tombstone":   {"TombstoneLasts", func(b backend) driver.Driver { return &oneTombstone{b} }},
		"tombstones do not count in a queue": {"TombstonedID", func(b backend) driver.Driver { return &sideDoor{b} }},
		"renewed leases are overstated":      {"UntilIsPessimistic", func(b backend) driver.Driver { return &flatterer{b} }},
		"shared leases are overstated":       {"UntilIsPessimistic", func(b backend) driver.Driver { return &pooler{backend: b} }},
	} {
		broken[name] = b
	}
}

// isBig reports whether a batch is larger than a script or a transaction might accept.
func isBig(refs []driver.Ref) bool { return len(refs) > 64 }

// backwards answers a big batch in reverse order.
type backwards struct{ backend }

func (b *backwards) Renew(ctx context.Context, refs []driver.Ref) ([]driver.State, error) {
	states, err := b.backend.Renew(ctx, refs)
	if isBig(refs) {
		slices.Reverse(states)
	}
	return states, err
}

// holdersFirst reads the waiters of a big batch without renewing them.
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

// slowBatches takes two seconds for a big batch.
type slowBatches struct{ backend }

func (b *slowBatches) Renew(ctx context.Context, refs []driver.Ref) ([]driver.State, error) {
	if isBig(refs) {
		time.Sleep(2 * time.Second)
	}
	return b.backend.Renew(ctx, refs)
}

// lapser does not restart a claim in one phase that is submitted again with the same TTL, but
// reports that it did. When the deadline has passed, the same call stores the claim again.
type lapser struct {
	backend
	phase driver.Phase
	ttl   map[string]time.Duration
}

func (b *lapser) Acquire(ctx context.Context, r driver.Request) (driver.State, error) {
	claims, _ := b.Inspect(ctx, r.Key)
	for i, c := range claims {
		if c.ID == r.ID && c.Phase == b.phase && b.ttl[r.ID] == r.TTL {
			return driver.State{Phase: c.Phase, Token: c.Token, Ahead: i, Until: time.Now().Add(r.TTL)}, nil
		}
	}
	b.ttl[r.ID] = r.TTL
	return b.backend.Acquire(ctx, r)
}

// forbearing queues a late waiter again, as long as others wait.
type forbearing struct {
	backend
	waiters map[string]driver.Request
}

func (b *forbearing) Acquire(ctx context.Context, r driver.Request) (driver.State, error) {
	if r.Wait {
		b.waiters[r.ID] = r
	}
	return b.backend.Acquire(ctx, r)
}

func (b *forbearing) Renew(ctx context.Context, refs []driver.Ref) ([]driver.State, error) {
	states, err := b.backend.Renew(ctx, refs)
	for i := range states {
		r, isWaiter := b.waiters[refs[i].ID]
		claims, _ := b.Inspect(ctx, refs[i].Key)
		if states[i].Phase == driver.Gone && isWaiter && len(claims) > 1 {
			states[i], err = b.backend.Acquire(ctx, r)
		}
	}
	return states, err
}

// placeKeeper returns the place of a waiter that asks again, and does not move its deadline.
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

// conservative stores the first TTL of a claim, and reports the last one.
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

// cheater gives half a lease to claims that share a key, and reports a whole one.
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

// pooler keeps all claims of a driver on one lease, and counts it from the answer, unless it was renewed.
type pooler struct {
	backend
	mu   sync.Mutex
	held []driver.Ref
}

func (b *pooler) Acquire(ctx context.Context, r driver.Request) (driver.State, error) {
	st, err := b.backend.Acquire(ctx, r)
	if err == nil && st.Phase == driver.Held {
		b.mu.Lock()
		b.held = append(b.held, r.Ref)
		b.mu.Unlock()
		st.Until = st.Until.Add(20 * time.Millisecond)
	}
	return st, err
}

func (b *pooler) Renew(ctx context.Context, refs []driver.Ref) ([]driver.State, error) {
	b.mu.Lock()
	_, err := b.backend.Renew(ctx, slices.Clone(b.held))
	b.mu.Unlock()
	if err != nil {
		return nil, err
	}
	return b.backend.Renew(ctx, refs)
}

// shortTombstones keeps the tombstones of claims that were found in one phase for only a second.
type shortTombstones struct {
	backend
	of driver.Phase
}

// tombstoneEnds holds when the tombstones of shortTombstones end, by ID, and lastTombstones the IDs
// of oneTombstone, by key: for all drivers of a store.
var tombstoneEnds, lastTombstones sync.Map

func (b *shortTombstones) Release(ctx context.Context, r driver.Ref) (driver.State, error) {
	tombstone := r
	r.Unanswered = false
	st, err := b.backend.Release(ctx, r)
	switch {
	case err != nil || !tombstone.Unanswered:
	case st.Phase == b.of:
		tombstoneEnds.Store(r.ID, time.Now().Add(time.Second))
	default:
		_, err = b.backend.Release(ctx, tombstone)
	}
	return st, err
}

func (b *shortTombstones) Acquire(ctx context.Context, r driver.Request) (driver.State, error) {
	end, ok := tombstoneEnds.Load(r.ID)
	if ok && time.Now().Before(end.(time.Time)) { //nolint:forcetypeassert // nothing else is stored
		return driver.State{Phase: driver.Gone}, nil
	}
	return b.backend.Acquire(ctx, r)
}

// oneTombstone keeps only one tombstone for each key.
type oneTombstone struct{ backend }

func (b *oneTombstone) Release(ctx context.Context, r driver.Ref) (driver.State, error) {
	if r.Unanswered {
		lastTombstones.Store(r.Key, r.ID)
	}
	r.Unanswered = false
	return b.backend.Release(ctx, r)
}

func (b *oneTombstone) Acquire(ctx context.Context, r driver.Request) (driver.State, error) {
	if id, _ := lastTombstones.Load(r.Key); id == r.ID {
		return driver.State{Phase: driver.Gone}, nil
	}
	return b.backend.Acquire(ctx, r)
}

// sideDoor queues an ID with a tombstone if other claims wait.
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
