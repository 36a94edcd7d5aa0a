// Package watch listens to the servers themselves and stamps when a lock ended
// there.
package watch

import (
	"context"
	"slices"
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
	// Tokens is how many tokens the lock had, from Fence on, for handing it over inside a process; 0: one.
	Tokens int64
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
// is judged. What one of the servers of redlock drops is not the lock's end; what a majority
// has dropped is.
func Start(t topology.Topology) *Watcher {
	ctx, cancel := context.WithCancel(context.Background())
	w := &Watcher{cancel: cancel}
	direct := t.Direct()
	switch direct.Kind {
	case "etcd":
		w.work.Go(func() { w.etcd(ctx, direct) })
	case "redlock":
		q := newQuorum(len(direct.Addrs), w.end, w.undo)
		for i, a := range direct.Addrs {
			w.work.Go(func() { w.redis(ctx, a, voter{q, i}) })
		}
	default:
		for _, a := range Addrs(t) {
			w.work.Go(func() { w.redis(ctx, a, alone{w}) })
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
	w.end(Death{At: mono.Now(), Key: key, Fence: fence, Cause: cause})
}

func (w *Watcher) end(d Death) {
	d.Key = d.Key[len(worker.Prefix):]
	w.mu.Lock()
	defer w.mu.Unlock()
	w.deaths = append(w.deaths, d)
}

// undo takes back what was not so.
func (w *Watcher) undo(d Death) {
	d.Key = d.Key[len(worker.Prefix):]
	w.mu.Lock()
	defer w.mu.Unlock()
	w.deaths = slices.DeleteFunc(w.deaths, func(other Death) bool { return other == d })
}

// alone is the sink of a server whose word is enough.
type alone struct{ w *Watcher }

func (alone) begin() []string   { return nil }
func (alone) changed(string)    {}
func (alone) has(string, int64) {}
func (alone) interrupted()      {}

func (a alone) ended(key string, of hold, cause string) {
	if of.fence != 0 {
		a.w.end(Death{At: mono.Now(), Key: key, Fence: of.fence, Tokens: of.tokens, Cause: cause})
	}
}

// A voter is the sink of one of several servers.
type voter struct {
	q  *quorum
	at int
}

func (v voter) begin() []string                        { return v.q.hear(v.at, true) }
func (v voter) changed(key string)                     { v.q.set(v.at, key, -1, "") }
func (v voter) has(key string, token int64)            { v.q.set(v.at, key, token, "not stored") }
func (v voter) ended(key string, _ hold, cause string) { v.q.set(v.at, key, 0, cause) }
func (v voter) interrupted()                           { v.q.hear(v.at, false) }
