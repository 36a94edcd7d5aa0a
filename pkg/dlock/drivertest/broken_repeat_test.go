package drivertest_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"

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
	"the first attempt is not answered": {"Order", func(b backend) driver.Driver { return &flaky{backend: b, class: driver.Ambiguous} }},
	"the caller has to try again":       {"Order", func(b backend) driver.Driver { return &flaky{backend: b, class: driver.Transient} }},
}

// flaky fails every second call.
type flaky struct {
	backend
	class driver.Class
	calls atomic.Int64
}

func (b *flaky) fail() error {
	if b.calls.Add(1)%2 == 0 {
		return nil
	}
	return driver.Classify(errors.New("try again"), b.class)
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
