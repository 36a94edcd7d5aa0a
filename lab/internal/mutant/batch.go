package mutant

import (
	"context"
	"slices"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// Mutants that are wrong about several keys in one call.

// batchGrantsAll takes keys that were refused for granted.
func batchGrantsAll(Servers, *memory) hooks {
	return hooks{acquireBatch: func(ctx context.Context, d driver.Batcher, rs []driver.Request) ([]driver.State, error) {
		states, err := d.AcquireBatch(ctx, rs)
		for i := range states {
			if states[i].Phase == driver.Gone {
				states[i] = held(time.Now().UnixMicro(), rs[i].TTL)
			}
		}
		return states, err
	}}
}

// batchForgets says that none was granted if one was not, and leaves the others stored.
func batchForgets(Servers, *memory) hooks {
	return hooks{acquireBatch: func(ctx context.Context, d driver.Batcher, rs []driver.Request) ([]driver.State, error) {
		states, err := d.AcquireBatch(ctx, rs)
		if slices.ContainsFunc(states, func(st driver.State) bool { return st.Phase == driver.Gone }) {
			for i := range states {
				states[i] = driver.State{Phase: driver.Gone}
			}
		}
		return states, err
	}}
}

// batchNeverReleases says that all are released and lets their leases run out.
func batchNeverReleases(Servers, *memory) hooks {
	return hooks{releaseBatch: func(_ context.Context, _ driver.Batcher, refs []driver.Ref) ([]driver.State, error) {
		states := make([]driver.State, len(refs))
		for i := range states {
			states[i].Phase = driver.Held
		}
		return states, nil
	}}
}
