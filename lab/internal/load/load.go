// Package load puts many waiters, names and locks on one Client and looks at what
// that costs the process.
package load

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/ceyewan/genesis/internal/servers"
	"github.com/ceyewan/genesis/lab/internal/worker"
	"github.com/ceyewan/genesis/pkg/dlock"
)

// Sizes are how much of everything.
type Sizes struct {
	Waiters int           // on one key
	Names   int           // one after the other, through one Client
	Locks   int           // held at once
	Hold    time.Duration // for so long, with restarts of the server between
}

// A Figure is what was measured.
type Figure struct {
	Name  string
	Value float64
	Unit  string
}

// A testbed is a server and one Client on it.
type testbed struct {
	server  *servers.Redis
	clients *worker.Clients
	client  *dlock.Client
	say     func(Figure)
}

// Run measures everything on a Redis server that loses nothing.
func Run(ctx context.Context, s Sizes, say func(Figure)) error {
	server, err := servers.StartRedis(ctx, servers.RedisOptions{Args: []string{"--appendonly", "yes", "--appendfsync", "everysec"}})
	if err != nil {
		return err
	}
	t := &testbed{server: server, say: say}
	defer t.close()
	if t.clients, err = worker.Connect(worker.Backend{Kind: "single", Addrs: []string{server.Addr()}}); err != nil {
		return err
	}
	t.client, err = dlock.New(&dlock.Config{Prefix: worker.Prefix, DefaultTTL: time.Minute}, dlock.WithBackend(t.clients.Locks()))
	if err != nil {
		return err
	}
	for _, step := range []func(context.Context, Sizes) error{t.warm, t.waiters, t.again, t.names, t.locks} {
		if err := step(ctx, s); err != nil {
			return err
		}
	}
	return nil
}

func (t *testbed) close() {
	if t.client != nil {
		_ = t.client.Close()
	}
	if t.clients != nil {
		t.clients.Close()
	}
	_ = t.server.Stop()
}

func (t *testbed) report(name string, value float64, unit string) {
	t.say(Figure{name, value, unit})
}

// warm makes what stays without being ours: connections, and the descriptors of
// goroutines, which the runtime keeps for the next ones.
func (t *testbed) warm(ctx context.Context, s Sizes) error {
	var crowd sync.WaitGroup
	leave := make(chan struct{})
	for range s.Waiters {
		crowd.Go(func() { <-leave })
	}
	close(leave)
	crowd.Wait()
	return t.spread(ctx, 1000, 64, func(i int) error { return t.cycle(ctx, fmt.Sprintf("warm-%d", i)) })
}

func (t *testbed) cycle(ctx context.Context, key string) error {
	g, err := t.client.Acquire(ctx, key)
	if err != nil {
		return err
	}
	return g.Unlock(ctx)
}

// spread does n things, so many at a time.
func (t *testbed) spread(ctx context.Context, n, hands int, do func(int) error) error {
	var next atomic.Int64
	var group errgroup.Group
	for range hands {
		group.Go(func() (err error) {
			for i := next.Add(1) - 1; i < int64(n) && ctx.Err() == nil && err == nil; i = next.Add(1) - 1 {
				err = do(int(i))
			}
			return err
		})
	}
	return group.Wait()
}

// waiters makes all waiters wait for one key, and serves them.
func (t *testbed) waiters(ctx context.Context, s Sizes) error {
	before := look()
	first, err := t.client.Acquire(ctx, "one")
	if err != nil {
		return err
	}
	begin := time.Now()
	group, waiting := errgroup.WithContext(ctx)
	for range s.Waiters {
		group.Go(func() error { return t.cycle(waiting, "one") })
	}
	time.Sleep(3 * time.Second)
	t.report(fmt.Sprintf("heap with %d waiters on one key", s.Waiters), mib(look().heap-before.heap), "MiB")
	if err := first.Unlock(ctx); err != nil {
		return err
	}
	if err := group.Wait(); err != nil {
		return err
	}
	t.report(fmt.Sprintf("%d waiters on one key, all served after", s.Waiters), time.Since(begin).Seconds(), "s")
	t.compare("afterwards", before)
	return nil
}

// again shows that what the first crowd left behind, the second one uses: maps and
// buffers that have grown stay as they are.
func (t *testbed) again(ctx context.Context, s Sizes) error { return t.waiters(ctx, s) }

// names locks and unlocks many keys, each once.
func (t *testbed) names(ctx context.Context, s Sizes) error {
	before, begin := look(), time.Now()
	err := t.spread(ctx, s.Names, 64, func(i int) error { return t.cycle(ctx, fmt.Sprintf("name-%d", i)) })
	if err != nil {
		return err
	}
	t.report(fmt.Sprintf("%d names through one Client", s.Names), float64(s.Names)/time.Since(begin).Seconds(), "cycles/s")
	t.compare("afterwards", before)
	return nil
}

// locks holds many at once while the server is killed and comes back.
func (t *testbed) locks(ctx context.Context, s Sizes) error {
	idle := look()
	guards := make([]*dlock.Guard, s.Locks)
	err := t.spread(ctx, s.Locks, 64, func(i int) (err error) {
		guards[i], err = t.client.Acquire(ctx, fmt.Sprintf("held-%d", i))
		return err
	})
	if err != nil {
		return err
	}
	begin, full, restarts := time.Now(), look(), 0
	t.report(fmt.Sprintf("heap with %d locks", s.Locks), mib(full.heap-idle.heap), "MiB")
	for pause := s.Hold / 10; time.Since(begin) < s.Hold; restarts++ {
		time.Sleep(pause)
		if err := errors.Join(t.server.Kill(), t.server.Restart(ctx, true)); err != nil {
			return err
		}
	}
	time.Sleep(25 * time.Second) // a renewal of all
	lost := 0
	for _, g := range guards {
		if g.Remaining() == 0 {
			lost++
		}
	}
	t.report(fmt.Sprintf("locks lost of %d in %v with %d restarts", s.Locks, time.Since(begin).Round(time.Second), restarts), float64(lost), "")
	t.compare("compared with the beginning of the hold", full)
	err = t.spread(ctx, s.Locks, 64, func(i int) error { return ignoreLost(guards[i].Unlock(ctx)) })
	clear(guards)
	t.compare("after all are released", idle)
	return err
}

func ignoreLost(err error) error {
	if errors.Is(err, dlock.ErrOwnershipLost) {
		return nil
	}
	return err
}

// A cost is what the process uses.
type cost struct {
	heap        int64
	goroutines  int
	descriptors int
}

func look() cost {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	open, _ := os.ReadDir("/proc/self/fd")
	return cost{int64(m.HeapAlloc), runtime.NumGoroutine(), len(open)}
}

func (t *testbed) compare(when string, before cost) {
	after := look()
	t.report("  heap, "+when, mib(after.heap-before.heap), "MiB more")
	t.report("  goroutines, "+when, float64(after.goroutines-before.goroutines), "more")
	t.report("  descriptors, "+when, float64(after.descriptors-before.descriptors), "more")
}

func mib(n int64) float64 { return float64(n) / (1 << 20) }
