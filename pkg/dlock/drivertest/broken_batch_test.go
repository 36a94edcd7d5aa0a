package drivertest_test

import (
	"context"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

func init() {
	broken["a batch goes on after a busy key"] = brokenBackend{"Batch", func(b backend) driver.Driver { return &eager{backend: b} }}
	broken["a batch with new IDs"] = brokenBackend{"Batch", func(b backend) driver.Driver { return &renaming{eager{backend: b}} }}
	broken["a batch releases nothing"] = brokenBackend{"Batch", func(b backend) driver.Driver { return &keeping{eager{backend: b}} }}
}

// eager submits all claims of a batch, also those after a key that is taken.
type eager struct{ backend }

func (b *eager) CanBatch([]string) bool { return true }

func (b *eager) AcquireBatch(ctx context.Context, rs []driver.Request) (states []driver.State, err error) {
	for _, r := range rs {
		st, err := b.Acquire(ctx, r)
		if err != nil {
			return nil, err
		}
		states = append(states, st)
	}
	return states, nil
}

func (b *eager) ReleaseBatch(ctx context.Context, refs []driver.Ref) (states []driver.State, err error) {
	for _, r := range refs {
		st, err := b.Release(ctx, r)
		if err != nil {
			return nil, err
		}
		states = append(states, st)
	}
	return states, nil
}

type renaming struct{ eager }

func (b *renaming) AcquireBatch(ctx context.Context, rs []driver.Request) ([]driver.State, error) {
	own := append([]driver.Request(nil), rs...)
	for i := range own {
		own[i].ID = own[i].ID[1:] + "0"
	}
	return b.eager.AcquireBatch(ctx, own)
}

type keeping struct{ eager }

func (b *keeping) ReleaseBatch(_ context.Context, refs []driver.Ref) ([]driver.State, error) {
	states := make([]driver.State, len(refs))
	for i := range states {
		states[i].Phase = driver.Held
	}
	return states, nil
}
