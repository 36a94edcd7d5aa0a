package soak

import (
	"cmp"
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

// An instance is one Client with its connections, and the next when that was closed.
type instance struct {
	child  *child
	number int
	local  driver.Opener // nil if there are servers

	mu      sync.Mutex
	client  *dlock.Client
	clients *worker.Clients // nil without servers
}

// localStore is the backend of locks without a server, which all instances share.
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

// config differs between instances, so that re-entry and local hand-over are used and are not.
func (i *instance) config() dlock.Config {
	cfg := dlock.Config{Prefix: worker.Prefix, DefaultTTL: ttl, EnableReentrant: i.number == 0}
	if i.number == 1 && i.ranges() {
		cfg.LocalBatch = 4
	}
	return cfg
}

// ranges says whether the backend reserves tokens, which LocalBatch needs.
func (i *instance) ranges() bool {
	kind := i.child.orders.Backend.Kind
	return kind != "redlock" && kind != "etcd"
}

func (i *instance) modes() []driver.Mode {
	if i.child.orders.Backend.Kind == "redlock" {
		return []driver.Mode{driver.Exclusive}
	}
	return []driver.Mode{driver.Exclusive, driver.Shared, driver.Permit}
}

// reopen makes other connections and another Client, and closes the old ones.
func (i *instance) reopen() error {
	var conns *worker.Clients
	if i.local == nil {
		var err error
		conns, err = worker.Connect(i.child.orders.Backend)
		if err != nil {
			return err
		}
	}
	i.mu.Lock()
	old := i.clients
	i.clients = conns
	i.mu.Unlock()
	if err := i.restart(); err != nil {
		return err
	}
	if old != nil {
		old.Close()
	}
	return nil
}

// restart opens another Client on the same connections, and closes the old one under its
// users.
func (i *instance) restart() error {
	i.mu.Lock()
	locks := i.local
	if i.clients != nil {
		locks = i.clients.Locks()
	}
	cfg := i.config()
	next, err := dlock.New(&cfg, dlock.WithBackend(locks), dlock.WithAdmin())
	if err != nil {
		i.mu.Unlock()
		return err
	}
	old := i.client
	i.client = next
	i.mu.Unlock()
	if old == nil {
		return nil
	}
	i.child.counts.add("close", old.Close())
	return nil
}

func (i *instance) get() *dlock.Client {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.client
}

func (i *instance) closeClient() { i.child.counts.add("close", i.get().Close()) }

func (i *instance) closeConnections() {
	if i.clients != nil {
		i.clients.Close()
	}
}

// user is one that uses everything.
func (i *instance) user(name string, r *rand.Rand) *sim.User {
	return &sim.User{
		Name: name, Rand: r, Config: i.config(), Modes: i.modes(), Client: i.get, Observer: i.child.counts,
		Restart: i.restart,
		Evict:   func(key string) { i.evict(key) },
		Key:     func(mixed bool) string { return i.key(r, mixed) },
		Several: rand.New(rand.NewPCG(r.Uint64(), 1)), Withdraws: func(*sim.Request) {},
		Extra: rand.New(rand.NewPCG(r.Uint64(), 2)), Async: true,
	}
}

// key is a name that many use, or one that was never used before.
func (i *instance) key(r *rand.Rand, mixed bool) string {
	switch {
	case r.IntN(10) < 6:
		return i.child.newName()
	case mixed:
		return "mixed-" + strconv.Itoa(r.IntN(hotKeys))
	}
	return "hot-" + strconv.Itoa(r.IntN(hotKeys))
}

// evict takes a lock from whoever holds it.
func (i *instance) evict(key string) {
	ctx, cancel := context.WithTimeout(context.Background(), ttl)
	defer cancel()
	admin, err := i.get().Admin()
	if err != nil {
		i.child.counts.add("inspect", err)
		return
	}
	claims, err := admin.Inspect(ctx, key)
	i.child.counts.add("inspect", err)
	if err != nil || len(claims) == 0 || claims[0].Phase != dlock.PhaseHeld {
		return
	}
	i.child.counts.add("evict", admin.Evict(ctx, key, claims[0].Token))
}

// fill brings the pools of connections to their full size: they grow when many calls
// coincide, which happens ever more rarely and would look like a slow leak.
func (i *instance) fill(ctx context.Context) {
	i.mu.Lock()
	conns := i.clients
	i.mu.Unlock()
	if conns == nil {
		return
	}
	pools := slices.Clone(conns.Nodes)
	if conns.Redis != nil {
		pools = append(pools, conns.Redis)
	}
	var all sync.WaitGroup
	for _, p := range pools {
		single, pipelines := poolSizes(p)
		for range single {
			all.Go(func() {
				_ = p.BLPop(ctx, time.Second, worker.Prefix+"nothing").Err() // that nothing came
			})
		}
		for range pipelines { // which go-redis sends through connections of their own
			all.Go(func() {
				_, _ = p.Pipelined(ctx, func(pipe redis.Pipeliner) error {
					pipe.BLPop(ctx, time.Second, worker.Prefix+"nothing")
					return nil
				})
			})
		}
	}
	all.Wait()
}

func poolSizes(c redis.UniversalClient) (single, pipelines int) {
	if one, ok := c.(*redis.Client); ok {
		return one.Options().PoolSize, cmp.Or(one.Options().PipelinePoolSize, redis.DefaultPipelinePoolSize)
	}
	return 0, 0
}

// cleanFiles removes the files of locks that were not used for a while, as operators do.
func (c *child) cleanFiles(ctx context.Context) {
	store := filelock.New(c.orders.Dir)
	for ctx.Err() == nil {
		pause(ctx, c.orders.Unused/4)
		_, err := store.Clean(ctx, c.orders.Unused)
		if !errors.Is(err, context.Canceled) {
			c.counts.add("clean", err)
		}
	}
}
