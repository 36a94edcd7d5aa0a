// Package watch listens to the servers themselves and stamps when a lock ended
// there.
package watch

import (
	"context"
	"sync"

	"github.com/ceyewan/genesis/lab/internal/mono"
	"github.com/ceyewan/genesis/lab/internal/topology"
	"github.com/ceyewan/genesis/lab/internal/worker"
)

// A Death is the end of a lock at its server, whatever the cause. At is when we heard
// of it, a little later than when it happened.
type Death struct {
	At    int64
	Key   string
	Fence int64
	Cause string // expired, del, or what else the server calls it
}

// A Watcher listens until it is stopped.
type Watcher struct {
	cancel context.CancelFunc
	work   sync.WaitGroup

	mu     sync.Mutex
	deaths []Death
}

// A multiNode topology announces servers that the watcher goes to one by one.
type multiNode interface{ NodeAddrs() []string }

// Addrs are the servers of a topology, one by one.
func Addrs(t topology.Topology) []string {
	if m, ok := t.(multiNode); ok {
		return m.NodeAddrs()
	}
	return t.Direct().Addrs
}

// Start listens to the servers of a topology. It needs no client of the library that
// is judged. The servers of redlock are not watched: what one of them drops is not
// the lock's end.
func Start(t topology.Topology) *Watcher {
	ctx, cancel := context.WithCancel(context.Background())
	w := &Watcher{cancel: cancel}
	direct := t.Direct()
	switch direct.Kind {
	case "etcd":
		w.work.Go(func() { w.etcd(ctx, direct) })
	case "redlock":
	default:
		for _, a := range Addrs(t) {
			w.work.Go(func() { w.redis(ctx, a) })
		}
	}
	return w
}

// Stop ends listening and returns what was heard.
func (w *Watcher) Stop() []Death {
	w.cancel()
	w.work.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.deaths
}

func (w *Watcher) add(key string, fence int64, cause string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.deaths = append(w.deaths, Death{At: mono.Now(), Key: key[len(worker.Prefix):], Fence: fence, Cause: cause})
}
