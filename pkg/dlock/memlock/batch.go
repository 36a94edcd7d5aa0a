package memlock

import (
	"context"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// CanBatch reports that locks can always be acquired and released together.
func (m *memory) CanBatch([]string) bool { return true }

// AcquireBatch submits claims until one of them is not granted.
func (m *memory) AcquireBatch(ctx context.Context, rs []driver.Request) ([]driver.State, error) {
	if err := ctx.Err(); err != nil {
		return nil, driver.Classify(err, driver.Transient) // nothing is stored
	}
	sent, states := time.Now(), make([]driver.State, len(rs))
	m.store.mu.Lock()
	defer m.store.mu.Unlock()
	free := true
	for i := range rs {
		states[i].Phase = driver.Gone
		if free {
			states[i] = m.submit(&rs[i], sent)
			free = states[i].Phase == driver.Held
		}
	}
	return states, nil
}

// ReleaseBatch releases all claims.
func (m *memory) ReleaseBatch(ctx context.Context, refs []driver.Ref) ([]driver.State, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	states := make([]driver.State, len(refs))
	m.store.mu.Lock()
	defer m.store.mu.Unlock()
	for i := range refs {
		states[i] = m.removeRef(refs[i])
	}
	return states, nil
}
