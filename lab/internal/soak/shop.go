package soak

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ceyewan/genesis/internal/sim"
	"github.com/ceyewan/genesis/lab/internal/worker"
	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/filelock"
	"github.com/ceyewan/genesis/pkg/dlock/memlock"
)

// Kinds of backends without a server.
const (
	kindFile   = "file"
	kindMemory = "memory"
)

// A shop is one Client with its connections, and the next when that was closed.
type shop struct {
	child  *child
	number int
	local  driver.Opener // nil if there are servers

	mu      sync.Mutex
	client  *dlock.Client
	clients *worker.Clients // nil without servers
}

// localStore is the backend of locks without a server, which all shops share.
func (c *child) localStore() driver.Opener {
	switch c.orders.Backend.Kind {
	case kindFile:
		return filelock.New(c.orders.Dir)
	case kindMemory:
		return memlock.New()
	}
	return nil
}

// ttl is the lease of most locks. Users draw their own.
const ttl = 5 * time.Second

// config differs between shops, so that re-entry and local hand-over are used and are not.
func (s *shop) config() dlock.Config {
	cfg := dlock.Config{Prefix: worker.Prefix, DefaultTTL: ttl, EnableReentrant: s.number == 0}
	if s.number == 1 && s.ranges() {
		cfg.LocalBatch = 4
	}
	return cfg
}

// ranges says whether the backend reserves tokens, which LocalBatch needs.
func (s *shop) ranges() bool {
	kind := s.child.orders.Backend.Kind
	return kind != "redlock" && kind != "etcd"
}

func (s *shop) modes() []driver.Mode {
	if s.local == nil {
		return []driver.Mode{driver.Exclusive}
	}
	return []driver.Mode{driver.Exclusive, driver.Shared, driver.Permit}
}

// reopen makes other connections and another Client, and closes the old ones.
func (s *shop) reopen() error {
	var conns *worker.Clients
	if s.local == nil {
		var err error
		conns, err = worker.Connect(s.child.orders.Backend)
		if err != nil {
			return err
		}
	}
	s.mu.Lock()
	old := s.clients
	s.clients = conns
	s.mu.Unlock()
	if err := s.restart(); err != nil {
		return err
	}
	if old != nil {
		old.Close()
	}
	return nil
}

// restart opens another Client on the same connections, and closes the old one under its
// users.
func (s *shop) restart() error {
	s.mu.Lock()
	locks := s.local
	if s.clients != nil {
		locks = s.clients.Locks()
	}
	cfg := s.config()
	next, err := dlock.New(&cfg, dlock.WithBackend(locks), dlock.WithAdmin())
	if err != nil {
		s.mu.Unlock()
		return err
	}
	old := s.client
	s.client = next
	s.mu.Unlock()
	if old == nil {
		return nil
	}
	s.child.tally.add("close", old.Close())
	return nil
}

func (s *shop) get() *dlock.Client {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.client
}

func (s *shop) closeClient() { s.child.tally.add("close", s.get().Close()) }

func (s *shop) closeConnections() {
	if s.clients != nil {
		s.clients.Close()
	}
}

// user is one that uses everything.
func (s *shop) user(name string, r *rand.Rand) *sim.User {
	return &sim.User{
		Name: name, Rand: r, Config: s.config(), Modes: s.modes(), Client: s.get, Observer: s.child.tally,
		Restart: s.restart,
		Evict:   func(key string) { s.evict(key) },
		Key:     func(mixed bool) string { return s.key(r, mixed) },
	}
}

// key is a name that many use, or one that was never used before.
func (s *shop) key(r *rand.Rand, mixed bool) string {
	switch {
	case r.IntN(10) < 6:
		return s.child.newName()
	case mixed:
		return "mixed-" + strconv.Itoa(r.IntN(hotKeys))
	}
	return "hot-" + strconv.Itoa(r.IntN(hotKeys))
}

// evict takes a lock from whoever holds it.
func (s *shop) evict(key string) {
	ctx, cancel := context.WithTimeout(context.Background(), ttl)
	defer cancel()
	admin, err := s.get().Admin()
	if err != nil {
		s.child.tally.add("inspect", err)
		return
	}
	claims, err := admin.Inspect(ctx, key)
	s.child.tally.add("inspect", err)
	if err != nil || len(claims) == 0 || claims[0].Phase != driver.Held {
		return
	}
	s.child.tally.add("evict", admin.Evict(ctx, key, claims[0].Token))
}

// fill brings the pools of connections to their full size: they grow when many calls
// coincide, which happens ever more rarely and would look like a slow leak.
func (s *shop) fill(ctx context.Context) {
	s.mu.Lock()
	conns := s.clients
	s.mu.Unlock()
	if conns == nil {
		return
	}
	pools := slices.Clone(conns.Nodes)
	if conns.Redis != nil {
		pools = append(pools, conns.Redis)
	}
	var all sync.WaitGroup
	for _, p := range pools {
		for range poolSize(p) {
			all.Go(func() {
				_ = p.BLPop(ctx, time.Second, worker.Prefix+"nothing").Err() // that nothing came
			})
		}
	}
	all.Wait()
}

func poolSize(c redis.UniversalClient) int {
	if one, ok := c.(*redis.Client); ok {
		return one.Options().PoolSize
	}
	return 0
}

// cleanFiles removes the files of locks that were not used for a while, as operators do.
func (c *child) cleanFiles(ctx context.Context) {
	store := filelock.New(c.orders.Dir)
	for ctx.Err() == nil {
		pause(ctx, c.orders.Unused/4)
		_, err := store.Clean(ctx, c.orders.Unused)
		if !errors.Is(err, context.Canceled) {
			c.tally.add("clean", err)
		}
	}
}
