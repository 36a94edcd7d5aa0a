package hazardtest

import (
	"slices"
	"sync"
	"time"
)

// Calls are the faults that an Env has for single calls. The Env asks Next about each call
// that its clients make.
type Calls struct {
	mu     sync.Mutex
	faults []*fault
}

type fault struct {
	op   Op
	hits *Hits
	left []int         // by server
	hold chan struct{} // nil: lose the reply
}

// Hits counts what a fault has met.
type Hits struct {
	mu    sync.Mutex
	seen  []int // calls of this kind since then, by server
	met   []int // how many of them the fault has met
	first time.Time
}

// A Verdict is what becomes of a call: its reply is lost, it is held until a channel is
// closed, or nothing.
type Verdict struct {
	Lose bool
	Hold <-chan struct{} // nil: not held
}

// Lose has the replies of the next n calls to each of so many servers lost.
func (c *Calls) Lose(op Op, n, servers int) *Hits { return c.add(op, n, servers, nil) }

// Hold has the next n calls to each of so many servers held.
func (c *Calls) Hold(op Op, n, servers int) (*Hits, func()) {
	until := make(chan struct{})
	hits := c.add(op, n, servers, until)
	return hits, func() { c.release(until) }
}

func (c *Calls) add(op Op, n, servers int, hold chan struct{}) *Hits {
	f := &fault{op: op, hold: hold, hits: &Hits{seen: make([]int, servers), met: make([]int, servers)}}
	f.left = slices.Repeat([]int{n}, servers)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.faults = append(c.faults, f)
	return f.hits
}

// release ends the fault with this channel, once.
func (c *Calls) release(until chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	i := slices.IndexFunc(c.faults, func(f *fault) bool { return f.hold == until })
	if i >= 0 {
		close(until)
		c.faults = slices.Delete(c.faults, i, i+1)
	}
}

// Heal ends all faults: what is held goes on.
func (c *Calls) Heal() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, f := range c.faults {
		if f.hold != nil {
			close(f.hold)
		}
	}
	c.faults = nil
}

// Next decides on a call to a server, which counts from 0.
func (c *Calls) Next(server int, op Op) (v Verdict) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, f := range c.faults {
		if f.op != op || server >= len(f.left) {
			continue
		}
		met := f.left[server] > 0 && v == Verdict{}
		f.hits.record(server, met)
		if met {
			f.left[server]--
			v = Verdict{Lose: f.hold == nil, Hold: f.hold}
		}
	}
	return v
}

func (h *Hits) record(server int, met bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.seen[server]++
	if !met {
		return
	}
	h.met[server]++
	if h.first.IsZero() {
		h.first = time.Now()
	}
}

// Most is how many calls to the same server were met.
func (h *Hits) Most() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Max(h.met)
}

// Least is how many calls to each of the servers were met.
func (h *Hits) Least() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Min(h.met)
}

// Seen is how many calls of this kind there were to the same server, met or not.
func (h *Hits) Seen() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Max(h.seen)
}

// First is when the first call was met.
func (h *Hits) First() time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.first
}
