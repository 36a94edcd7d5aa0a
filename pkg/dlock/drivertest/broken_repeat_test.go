package drivertest_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// nostalgic reports the first token of a claim that was stored again.
type nostalgic struct {
	backend
	mu    sync.Mutex
	first map[string]int64 // by ID
}

func (b *nostalgic) Acquire(ctx context.Context, r driver.Request) (driver.State, error) {
	st, err := b.backend.Acquire(ctx, r)
	b.mu.Lock()
	defer b.mu.Unlock()
	if token, known := b.first[r.ID]; known && st.Phase == driver.Held {
		st.Token = token
	} else {
		b.first[r.ID] = st.Token
	}
	return st, err
}

// failing are broken backends that only real time shows: in virtual time, no call is repeated.
var failing = map[string]brokenBackend{
	"the first attempt is not answered": {"Order", func(b backend) driver.Driver { return newFlaky(b, driver.Ambiguous) }},
	"the caller has to try again":       {"Order", func(b backend) driver.Driver { return newFlaky(b, driver.Transient) }},
	"every second page is not listed":   {"AdminList", newNegligent},
	"every second inspection fails":     {"AdminInspect", newNegligent},
	"every second look fails":           {"LookAtHolder", newNegligent},
	"an eviction is not answered":       {"AdminEvict", newNegligent},
	"most of a big batch is unanswered": {"BigBatch", func(b backend) driver.Driver { return &silent{backend: b} }},
	"an ended claim is shown a while":   {"EvictedIsStoredOnce", func(b backend) driver.Driver { return &lingering{backend: b} }},
}

func init() { broken["the first look is late"] = brokenBackend{"AdminInspect", newTardy} }

// failures fails every second call.
type failures struct {
	class driver.Class
	calls atomic.Int64
}

func (f *failures) fail() error {
	if f.calls.Add(1)%2 == 0 {
		return nil
	}
	return driver.Classify(errors.New("try again"), f.class)
}

// flaky fails every second call that the engine repeats.
type flaky struct {
	backend
	failures
}

func newFlaky(b backend, class driver.Class) *flaky {
	f := &flaky{backend: b}
	f.class = class
	return f
}

func (b *flaky) Acquire(ctx context.Context, r driver.Request) (driver.State, error) {
	if err := b.fail(); err != nil {
		return driver.State{}, err
	}
	return b.backend.Acquire(ctx, r)
}

func (b *flaky) Renew(ctx context.Context, refs []driver.Ref) ([]driver.State, error) {
	if err := b.fail(); err != nil {
		return nil, err
	}
	return b.backend.Renew(ctx, refs)
}

func (b *flaky) Release(ctx context.Context, r driver.Ref) (driver.State, error) {
	if err := b.fail(); err != nil {
		return driver.State{}, err
	}
	return b.backend.Release(ctx, r)
}

// negligent leaves some calls unanswered that the engine makes once, and carries them out.
type negligent struct {
	backend
	fail func() error
}

// newNegligent returns a backend that leaves every second call unanswered.
func newNegligent(b backend) driver.Driver {
	f := &failures{class: driver.Ambiguous}
	return &negligent{b, f.fail}
}

// newTardy returns a backend that is late, and then leaves its first call unanswered. It is for virtual time, where nothing else is late.
func newTardy(b backend) driver.Driver {
	var called atomic.Bool
	return &negligent{b, func() error {
		if called.Swap(true) {
			return nil
		}
		time.Sleep(2 * time.Second)
		return driver.Classify(errors.New("no answer in time"), driver.Ambiguous)
	}}
}

func (b *negligent) List(ctx context.Context, prefix, cursor string, limit int) ([]string, string, error) {
	keys, next, err := b.backend.List(ctx, prefix, cursor, limit)
	return keys, next, errors.Join(err, b.fail())
}

func (b *negligent) Inspect(ctx context.Context, key string) ([]driver.Claim, error) {
	claims, err := b.backend.Inspect(ctx, key)
	return claims, errors.Join(err, b.fail())
}

func (b *negligent) Evict(ctx context.Context, key, id string, token int64) (driver.State, error) {
	st, err := b.backend.Evict(ctx, key, id, token)
	return st, errors.Join(err, b.fail())
}

func (b *negligent) Look(ctx context.Context, key, except string) (driver.Claim, int, error) {
	claims, err := b.backend.Inspect(ctx, key)
	claims = slices.DeleteFunc(claims, func(c driver.Claim) bool { return c.ID == except })
	waiting := slices.DeleteFunc(slices.Clone(claims), func(c driver.Claim) bool { return c.Phase != driver.Queued })
	var holder driver.Claim
	if len(claims) > len(waiting) {
		holder = claims[0]
	}
	return holder, len(waiting), errors.Join(err, b.fail())
}

// silent answers for at most a hundred claims of a batch.
type silent struct{ backend }

func (b *silent) Renew(ctx context.Context, refs []driver.Ref) ([]driver.State, error) {
	states, err := b.backend.Renew(ctx, refs)
	for i := range states {
		if i >= 100 {
			states[i] = driver.State{}
		}
	}
	return states, err
}

// lingering shows a claim for a moment after it was released.
type lingering struct{ backend }

// released holds the claims that were released lately, by key, for all drivers of a store.
var released sync.Map

type releasedClaim struct {
	driver.Claim
	at time.Time
}

func (b *lingering) Release(ctx context.Context, r driver.Ref) (driver.State, error) {
	st, err := b.backend.Release(ctx, r)
	if st.Phase != driver.Gone {
		released.Store(r.Key, releasedClaim{driver.Claim{ID: r.ID, Phase: st.Phase}, time.Now()})
	}
	return st, err
}

func (b *lingering) Inspect(ctx context.Context, key string) ([]driver.Claim, error) {
	claims, err := b.backend.Inspect(ctx, key)
	stored, _ := released.Load(key)
	last, isKnown := stored.(releasedClaim)
	if isKnown && len(claims) == 0 && time.Since(last.at) < time.Second {
		claims = append(claims, last.Claim)
	}
	return claims, err
}
