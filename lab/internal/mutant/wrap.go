package mutant

import (
	"context"
	"sync"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// hooks replace what a healthy driver does. The one that is given is the healthy one.
type hooks struct {
	acquire func(ctx context.Context, d driver.Driver, r driver.Request) (driver.State, error)
	renew   func(ctx context.Context, d driver.Driver, refs []driver.Ref) ([]driver.State, error)
	release func(ctx context.Context, d driver.Driver, r driver.Ref) (driver.State, error)
	// acquireBatch and releaseBatch are for several keys. Without one of them, each key has its own calls.
	acquireBatch func(ctx context.Context, d driver.Batcher, rs []driver.Request) ([]driver.State, error)
	releaseBatch func(ctx context.Context, d driver.Batcher, refs []driver.Ref) ([]driver.State, error)
	// hear changes a push, or drops it.
	hear func(driver.Event) (driver.Event, bool)
	// also is another push that follows from one.
	also func(driver.Event) (driver.Event, bool)
}

// wrap makes a mutant of a healthy backend. The hooks of each driver are its own.
func wrap(make func(Servers, *memory) hooks) func(driver.Opener, Servers) driver.Opener {
	return func(healthy driver.Opener, s Servers) driver.Opener {
		return opener(func(o driver.Options) (driver.Driver, error) {
			d, err := healthy.Open(o)
			if err != nil {
				return nil, err
			}
			m := &mutated{Driver: d, hooks: make(s, newMemory(o.Prefix))}
			if m.hear != nil {
				m.heard = driver.NewEventQueue(1024)
				m.forwarding.Go(m.listen)
			}
			return m, nil
		})
	}
}

type opener func(driver.Options) (driver.Driver, error)

func (o opener) Open(opts driver.Options) (driver.Driver, error) { return o(opts) }

type mutated struct {
	driver.Driver
	hooks
	heard      *driver.EventQueue
	forwarding sync.WaitGroup
}

func (m *mutated) Acquire(ctx context.Context, r driver.Request) (driver.State, error) {
	if m.acquire == nil {
		return m.Driver.Acquire(ctx, r)
	}
	return m.acquire(ctx, m.Driver, r)
}

func (m *mutated) Renew(ctx context.Context, refs []driver.Ref) ([]driver.State, error) {
	if m.renew == nil {
		return m.Driver.Renew(ctx, refs)
	}
	return m.renew(ctx, m.Driver, refs)
}

func (m *mutated) Release(ctx context.Context, r driver.Ref) (driver.State, error) {
	if m.release == nil {
		return m.Driver.Release(ctx, r)
	}
	return m.release(ctx, m.Driver, r)
}

func (m *mutated) CanBatch(keys []string) bool {
	d, ok := m.Driver.(driver.Batcher)
	return ok && (m.acquireBatch != nil || m.releaseBatch != nil) && d.CanBatch(keys)
}

func (m *mutated) AcquireBatch(ctx context.Context, rs []driver.Request) ([]driver.State, error) {
	d := m.Driver.(driver.Batcher)
	if m.acquireBatch == nil {
		return d.AcquireBatch(ctx, rs)
	}
	return m.acquireBatch(ctx, d, rs)
}

func (m *mutated) ReleaseBatch(ctx context.Context, refs []driver.Ref) ([]driver.State, error) {
	d := m.Driver.(driver.Batcher)
	if m.releaseBatch == nil {
		return d.ReleaseBatch(ctx, refs)
	}
	return m.releaseBatch(ctx, d, refs)
}

func (m *mutated) Events() <-chan driver.Event {
	if m.heard != nil {
		return m.heard.Events()
	}
	return m.Driver.Events()
}

func (m *mutated) listen() {
	for ev := range m.Driver.Events() {
		if ev, ok := m.hear(ev); ok {
			m.heard.Send(ev)
		}
		if m.also == nil {
			continue
		}
		if another, ok := m.also(ev); ok {
			m.heard.Send(another)
		}
	}
	m.heard.Close()
}

// deaf drops all pushes.
func deaf(driver.Event) (driver.Event, bool) { return driver.Event{}, false }

func (m *mutated) Close() error {
	err := m.Driver.Close()
	m.forwarding.Wait()
	return err
}

// A memory is what a mutant remembers of claims, by their IDs.
type memory struct {
	prefix string
	mu     sync.Mutex
	claims map[string]*remembered
	known  map[string]string // the engine's ID by the stored one
}

type remembered struct {
	ctx    context.Context // of its Acquire
	id     string          // under which it is stored
	key    string
	token  int64
	phase  driver.Phase
	failed bool
}

func newMemory(prefix string) *memory {
	return &memory{prefix: prefix, claims: map[string]*remembered{}, known: map[string]string{}}
}

// of changes what is remembered of a claim under the lock and returns a copy.
func (m *memory) of(id string, change func(*remembered)) remembered {
	m.mu.Lock()
	defer m.mu.Unlock()
	r := m.claims[id]
	if r == nil {
		r = &remembered{id: id}
		m.claims[id] = r
	}
	if change != nil {
		change(r)
	}
	return *r
}

// rename stores a claim under another ID.
func (m *memory) rename(id, stored string) {
	m.of(id, func(c *remembered) {
		c.id = stored
		m.known[stored] = id
	})
}

// original changes the ID in a push back.
func (m *memory) original(ev driver.Event) (driver.Event, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if id, ok := m.known[ev.ID]; ok {
		ev.ID = id
	}
	return ev, true
}

// as is a push that nothing changes.
func as(ev driver.Event) (driver.Event, bool) { return ev, true }

func held(token int64, ttl time.Duration) driver.State {
	return driver.State{Phase: driver.Held, Token: token, Until: time.Now().Add(ttl)}
}
