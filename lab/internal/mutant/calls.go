package mutant

import (
	"context"
	"sync"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// Mutants that are wrong about the claim that a push is for, or that a call has to wait for.

// believesAnyPush takes the grant of one waiter for that of another of the same process
// that waits for the same key, without asking the store.
func believesAnyPush(_ Servers, m *memory) hooks {
	return hooks{
		acquire: func(ctx context.Context, d driver.Driver, r driver.Request) (driver.State, error) {
			st, err := d.Acquire(ctx, r)
			m.of(r.ID, func(c *remembered) { c.key, c.phase = r.Key, st.Phase })
			return st, err
		},
		release: func(ctx context.Context, d driver.Driver, r driver.Ref) (driver.State, error) {
			m.of(r.ID, func(c *remembered) { c.phase = driver.Gone })
			return d.Release(ctx, r)
		},
		hear: as,
		also: func(ev driver.Event) (driver.Event, bool) {
			if ev.State.Phase != driver.Held {
				return ev, false
			}
			m.of(ev.ID, func(c *remembered) { c.phase = driver.Held })
			ev.ID = m.waiter(ev.Key)
			return ev, ev.ID != ""
		},
	}
}

// waiter is the ID of some claim that waits for a key.
func (m *memory) waiter(key string) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	for id, c := range m.claims {
		if c.key == key && c.phase == driver.Queued {
			return id
		}
	}
	return ""
}

// oneAtATime makes no call before the last one was answered, whatever it was for.
func oneAtATime(Servers, *memory) hooks {
	var turn sync.Mutex
	return hooks{
		acquire: func(ctx context.Context, d driver.Driver, r driver.Request) (driver.State, error) {
			turn.Lock()
			defer turn.Unlock()
			return d.Acquire(ctx, r)
		},
		renew: func(ctx context.Context, d driver.Driver, refs []driver.Ref) ([]driver.State, error) {
			turn.Lock()
			defer turn.Unlock()
			return d.Renew(ctx, refs)
		},
		release: func(ctx context.Context, d driver.Driver, r driver.Ref) (driver.State, error) {
			turn.Lock()
			defer turn.Unlock()
			return d.Release(ctx, r)
		},
	}
}

// releasesOneNode takes a lock from one server of redlock, and leaves the others to the
// lease.
func releasesOneNode(s Servers, m *memory) hooks {
	return hooks{
		acquire: remember(m),
		renew: func(ctx context.Context, d driver.Driver, refs []driver.Ref) ([]driver.State, error) {
			states, err := d.Renew(ctx, refs)
			m.note(refs, states)
			return states, err
		},
		release: func(ctx context.Context, d driver.Driver, r driver.Ref) (driver.State, error) {
			c := m.of(r.ID, nil)
			if c.phase != driver.Held {
				return d.Release(ctx, r)
			}
			ctx, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			_, err := freeScript.Run(ctx, s.Nodes[0], []string{m.prefix + r.Key, "naive:b:" + r.ID, "naive:q:" + r.Key}, r.ID, 0).Int()
			return driver.State{Phase: driver.Held, Token: c.token}, err
		},
	}
}
