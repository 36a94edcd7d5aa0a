package redislock

import (
	"context"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// masterPipeliners are the pipeliners of a cluster, one for each master.
type masterPipeliners struct {
	// loaded: go-redis has the state of the cluster, so looking up a master needs no I/O.
	loaded atomic.Bool

	mu     sync.Mutex                            // held to replace byAddr
	byAddr atomic.Pointer[map[string]*pipeliner] // read by every call, so never changed in place
}

// lockOf returns the lock of a command, which is the first key of every script.
func lockOf(cmd *command) string {
	lock, _ := cmd.Args()[3].(string)
	return lock
}

// masterFor returns the client of the master that has key, as far as go-redis knows. The first
// lookup asks a node. It runs in another goroutine, because the client may not honor ctx.
func (d *redisDriver) masterFor(ctx context.Context, key string) (*redis.Client, error) {
	if d.byMaster.loaded.Load() {
		return d.cluster.MasterForKey(ctx, key)
	}
	ctx, cancel := context.WithTimeout(ctx, tripTimeout)
	defer cancel()
	node, err := await(ctx, d, func() (*redis.Client, error) { return d.cluster.MasterForKey(ctx, key) })
	if err == nil {
		d.byMaster.loaded.Store(true)
	}
	return node, err
}

// pipelinerFor returns the pipeliner of the master that has lock. If the master is not known, it
// returns the driver's own pipeliner, and go-redis finds the master or returns an error.
func (d *redisDriver) pipelinerFor(ctx context.Context, lock string) *pipeliner {
	node, err := d.masterFor(ctx, lock)
	if err != nil {
		return &d.pipeliner
	}
	return d.pipelinerAt(node.Options().Addr)
}

// pipelinerOf returns the pipeliner for an address that nodeOf returned.
func (d *redisDriver) pipelinerOf(addr string) *pipeliner {
	if addr == "" {
		return &d.pipeliner
	}
	return d.pipelinerAt(addr)
}

func (d *redisDriver) pipelinerAt(addr string) *pipeliner {
	m := &d.byMaster
	known := m.byAddr.Load()
	if known != nil && (*known)[addr] != nil {
		return (*known)[addr]
	}
	return m.add(d, addr)
}

// forgetAfter is how long a pipeliner may be unused before it is dropped: its master has probably
// left.
const forgetAfter = 10 * time.Minute

func (m *masterPipeliners) add(d *redisDriver, addr string) *pipeliner {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := map[string]*pipeliner{}
	known := m.byAddr.Load()
	if known != nil {
		if p := (*known)[addr]; p != nil {
			return p
		}
		all = maps.Clone(*known)
	}
	maps.DeleteFunc(all, func(_ string, p *pipeliner) bool { return p.idleFor(forgetAfter) })
	p := &pipeliner{driver: d, used: time.Now()}
	all[addr] = p
	m.byAddr.Store(&all)
	return p
}

// idleFor reports whether nothing was sent for this long. A call that looked the pipeliner up
// before it is dropped still succeeds.
func (p *pipeliner) idleFor(d time.Duration) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.inFlight == 0 && len(p.delayed)+len(p.pending) == 0 && time.Since(p.used) > d
}

// masterAt reloads the state of the cluster and returns the client of the master with this address,
// or nil if the state does not contain it.
func (d *redisDriver) masterAt(ctx context.Context, addr string) *redis.Client {
	var found atomic.Pointer[redis.Client]
	_ = d.cluster.ForEachMaster(ctx, func(_ context.Context, c *redis.Client) error {
		if c.Options().Addr == addr || c.NodeAddress() == addr {
			found.Store(c)
		}
		return nil
	})
	return found.Load()
}

// await runs f in another goroutine, because the client may not honor ctx. It returns when f
// returns or ctx ends.
func await[T any](ctx context.Context, d *redisDriver, f func() (T, error)) (T, error) {
	type result struct {
		value T
		err   error
	}
	done := make(chan result, 1)
	d.work.Go(func() {
		v, err := f()
		done <- result{v, err}
	})
	select {
	case r := <-done:
		return r.value, r.err
	case <-ctx.Done():
		var none T
		return none, ctx.Err()
	}
}
