package drivertest_test

import (
	"context"
	"sync"

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
