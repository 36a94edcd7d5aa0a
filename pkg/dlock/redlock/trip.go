package redlock

import (
	"context"
	"errors"
	"sync"
	"time"
)

// A trip is a set of calls to several nodes that end together. It knows whether the caller needs a
// silent node: such a node is called after all when too many of the others fail or are slow. So a
// node that only seems dead, on a busy machine, is never missing from a majority.
type trip struct {
	ctx     context.Context
	end     context.CancelFunc
	timeout time.Duration

	mu       sync.Mutex
	need     int // so many answers decide
	left     int // calls without an answer
	hope     int // nodes that have answered or are being asked
	answered int
	enough   chan struct{} // closed when so many have answered
	short    chan struct{} // closed when so many cannot without those that are spared
	isShort  bool
}

func newTrip(nodes, need int, timeout time.Duration) *trip {
	t := &trip{timeout: timeout, need: need, left: nodes, hope: nodes, enough: make(chan struct{}), short: make(chan struct{})}
	t.ctx, t.end = context.WithTimeout(context.Background(), timeout)
	if need <= 0 {
		close(t.enough)
	}
	return t
}

// record notes how a call ended.
func (t *trip) record(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.left--
	if t.left == 0 {
		t.end()
	}
	switch {
	case err == nil:
		t.answered++
		if t.answered == t.need {
			close(t.enough)
		}
	case !errors.Is(err, errSilent): // one that was spared does not count already
		t.lower()
	}
}

// lower counts one node less. The caller holds mu.
func (t *trip) lower() {
	t.hope--
	if t.hope < t.need && !t.isShort {
		t.isShort = true
		close(t.short)
	}
}

// spares waits until it is clear whether a node need not be called, and reports that. If the others
// take long, it leaves enough time to call it.
func (t *trip) spares() bool {
	t.mu.Lock()
	t.lower()
	t.mu.Unlock()
	timer := time.NewTimer(t.timeout / 4)
	defer timer.Stop()
	select {
	case <-t.enough:
		return true
	case <-t.short:
	case <-timer.C:
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.hope++ // it counts again
	return false
}
