// Package memlock stores locks in the memory of one process. It is the reference backend: it has
// every mode and every capability, and it is correct under the virtual time of testing/synctest.
// Use it in tests, and wherever all contenders live in one process.
package memlock

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/internal/cursor"
)

// A Store holds the claims of any number of Clients. It is a driver.Opener: Clients that are opened
// on one Store exclude each other, like processes that share a server. It owns no goroutine and no
// timer, and needs no Close. The zero Store is empty and ready to use.
type Store struct {
	epoch time.Time

	mu         sync.Mutex
	keys       map[string]*entry
	tombstones map[string]time.Duration // claim ID -> when the tombstone ends
	sweepAt    int                      // size of tombstones at which ended tombstones are dropped
	turn       *entry                   // of the entries, which is looked at next
	fence      int64
}

// New returns an empty Store.
func New() *Store {
	s := &Store{}
	s.prepare()
	return s
}

// prepare makes a Store of the zero value.
func (s *Store) prepare() {
	if s.keys == nil {
		s.epoch, s.keys, s.tombstones, s.sweepAt = time.Now(), map[string]*entry{}, map[string]time.Duration{}, 64
	}
}

// Open returns a driver that uses the Store.
func (s *Store) Open(o driver.Options) (driver.Driver, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.prepare()
	return &memory{store: s, prefix: o.Prefix, EventQueue: driver.NewEventQueue(256), info: &driver.Info{}}, nil
}

// Advance moves the Store's clock ahead of its Clients' clocks, as a server's clock is after the
// machine of all its Clients was suspended: their leases end that much sooner.
func (s *Store) Advance(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.prepare()
	s.epoch = s.epoch.Add(-max(d, 0))
}

// at and now are the Store's clock, like the clock of a server. It runs with the clients' clock, so
// the time at which a call was sent serves for both.
func (s *Store) at(t time.Time) time.Duration { return t.Sub(s.epoch) }
func (s *Store) now() time.Duration           { return time.Since(s.epoch) }

func (s *Store) addTombstone(id string, now, ttl time.Duration) {
	s.tombstones[id] = now + driver.TombstoneTTL(ttl)
	if len(s.tombstones) < s.sweepAt {
		return
	}
	for id, end := range s.tombstones {
		if end <= now {
			delete(s.tombstones, id)
		}
	}
	s.sweepAt = 2*len(s.tombstones) + 64
}

func (s *Store) hasTombstone(id string, now time.Duration) bool {
	end, ok := s.tombstones[id]
	return ok && end > now
}

// memory is the driver of one Client.
type memory struct {
	store  *Store
	prefix string
	*driver.EventQueue

	info *driver.Info // under store.mu: the last one submitted: a Client's claims mostly share it
}

func (m *memory) Caps() driver.Caps {
	return driver.Caps{
		Name: "memory", Lease: true, Fencing: true, TokenRange: true, FIFO: true, Push: true,
		Modes:  []driver.Mode{driver.Exclusive, driver.Shared, driver.Permit},
		MinTTL: time.Millisecond,
	}
}

func (m *memory) Acquire(ctx context.Context, r driver.Request) (driver.State, error) {
	if err := ctx.Err(); err != nil {
		return driver.State{}, driver.Classify(err, driver.Transient) // nothing is stored
	}
	if r.Mode > driver.Permit || (r.Mode == driver.Permit && r.Limit < 1) {
		return driver.State{}, fmt.Errorf("%w: %s of %d", driver.ErrUnsupported, r.Mode, r.Limit)
	}
	sent := time.Now()
	m.store.mu.Lock()
	defer m.store.mu.Unlock()
	return m.submit(&r, sent), nil
}

// submit is Acquire under store.mu.
func (m *memory) submit(r *driver.Request, sent time.Time) driver.State {
	s := m.store
	now := s.at(sent)
	if s.hasTombstone(r.ID, now) {
		return driver.State{Phase: driver.Gone}
	}
	e := s.entry(m.prefix+r.Key, now)
	defer s.dropIfEmpty(e)
	s.advance(e, now)
	if c := e.find(r.ID, now); c != nil {
		c.restart(now, &r.Ref)
		return e.state(c, sent, now, &r.Ref)
	}
	fits := e.queue.head == nil && e.fits(r.Mode, r.Limit)
	if !fits && !r.Wait {
		return driver.State{Phase: driver.Gone}
	}
	c := e.newRecord()
	*c = record{
		id: r.ID, owner: m, entry: e, info: m.intern(r.Info), since: now,
		mode: r.Mode, limit: int32(r.Limit), tokens: int32(max(r.Tokens, 1)), phase: driver.Queued,
	}
	e.enqueue(c)
	if fits {
		s.grant(e, c, now)
	} else {
		s.dropOver(now)
	}
	c.restart(now, &r.Ref)
	return e.state(c, sent, now, &r.Ref)
}

func (m *memory) Renew(ctx context.Context, refs []driver.Ref) ([]driver.State, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	sent := time.Now()
	s := m.store
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.at(sent)
	states := make([]driver.State, len(refs))
	for i := range refs {
		r := &refs[i]
		states[i] = driver.State{Phase: driver.Gone}
		e := s.keys[m.prefix+r.Key]
		if e == nil {
			continue
		}
		s.advance(e, now)
		if c := e.find(r.ID, now); c != nil {
			c.restart(now, r)
			states[i] = e.state(c, sent, now, r)
		}
		s.dropIfEmpty(e)
	}
	return states, nil
}

func (m *memory) Release(ctx context.Context, r driver.Ref) (driver.State, error) {
	if err := ctx.Err(); err != nil {
		return driver.State{}, err
	}
	m.store.mu.Lock()
	defer m.store.mu.Unlock()
	return m.removeRef(r), nil
}

// removeRef is Release under store.mu.
func (m *memory) removeRef(r driver.Ref) driver.State {
	s, now := m.store, m.store.now()
	if r.Unanswered {
		s.addTombstone(r.ID, now, r.TTL)
	}
	return s.remove(m.prefix+r.Key, r.ID, now, func(*record) bool { return true })
}

func (m *memory) Close() error {
	m.EventQueue.Close()
	return nil
}

func (m *memory) List(ctx context.Context, prefix, from string, limit int) ([]string, string, error) {
	if err := ctx.Err(); err != nil {
		return nil, "", err
	}
	last, err := cursor.Key(from)
	if err != nil {
		return nil, "", err
	}
	s := m.store
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	var keys []string
	for name, e := range s.keys {
		key, ours := strings.CutPrefix(name, m.prefix)
		if !ours || key <= last || !strings.HasPrefix(key, prefix) {
			continue
		}
		s.advance(e, now)
		if !s.dropIfEmpty(e) {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	if limit < 1 || len(keys) <= limit {
		return keys, "", nil
	}
	return keys[:limit], cursor.After(keys[limit-1]), nil
}

func (m *memory) Inspect(ctx context.Context, key string) ([]driver.Claim, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	s := m.store
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.keys[m.prefix+key]
	if e == nil {
		return nil, nil
	}
	now := s.now()
	s.advance(e, now)
	defer s.dropIfEmpty(e)
	var claims []driver.Claim
	for _, l := range []*list{&e.holders, &e.queue} {
		for c := l.head; c != nil; c = c.next {
			if c.deadline > now {
				claims = append(claims, c.show(now))
			}
		}
	}
	return claims, nil
}

func (m *memory) Evict(ctx context.Context, key, id string, token int64) (driver.State, error) {
	if err := ctx.Err(); err != nil {
		return driver.State{}, err
	}
	s := m.store
	s.mu.Lock()
	defer s.mu.Unlock()
	var evicted *record
	st := s.remove(m.prefix+key, id, s.now(), func(c *record) bool {
		evicted = c
		return c.token == token
	})
	if st.Phase != driver.Gone {
		evicted.owner.Send(driver.Event{Key: evicted.key(), ID: id, State: driver.State{Phase: driver.Gone}})
	}
	return st, nil
}

// Check reports what memory can never provide.
func (m *memory) Check(context.Context) ([]driver.Finding, error) {
	return []driver.Finding{{
		Level: driver.Warning, Name: "scope",
		Detail: "locks are kept in the memory of this process and do not exclude other processes",
		Fix:    "choose the redis, etcd or file backend for contenders in several processes",
	}}, nil
}

func (m *memory) intern(i driver.Info) *driver.Info {
	if i != *m.info {
		m.info = new(driver.Info)
		*m.info = i
	}
	return m.info
}
