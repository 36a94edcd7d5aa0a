package dlock

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// departures are the claims on a remote backend that their callers have given up, and whose
// first release is still to be answered. A later call of this Client on the same key comes
// after it: it would else be refused because of a waiter of its own that has gone.
type departures struct {
	count atomic.Int32 // of keys, so that most calls need not look

	// Under client.mu.
	byKey map[string]*departure
}

type departure struct {
	claims int
	over   chan struct{}
}

// departBound is how long a call waits for those that have gone. A backend that is slow to
// release is slow to answer this call as well.
const departBound = 200 * time.Millisecond

// begin runs under mu.
func (d *departures) begin(key string) {
	if d.byKey == nil {
		d.byKey = map[string]*departure{}
	}
	if d.byKey[key] == nil {
		d.byKey[key] = &departure{over: make(chan struct{})}
		d.count.Add(1)
	}
	d.byKey[key].claims++
}

// end runs under mu.
func (d *departures) end(key string) {
	one := d.byKey[key]
	if one.claims--; one.claims == 0 {
		close(one.over)
		delete(d.byKey, key)
		d.count.Add(-1)
	}
}

// awaitDepartures waits for the claims on key that were given up before, and not for long.
func (c *Client) awaitDepartures(ctx context.Context, key string, bound time.Duration) {
	if c.departures.count.Load() == 0 {
		return
	}
	c.mu.Lock()
	one := c.departures.byKey[key]
	c.mu.Unlock()
	if one == nil {
		return
	}
	t := time.NewTimer(min(departBound, bound))
	defer t.Stop()
	select {
	case <-one.over:
	case <-ctx.Done():
	case <-c.closing.Done():
	case <-t.C:
	}
}

// departed is for a release that was tried once, whatever came of it. It runs under mu.
func (c *Client) departed(s *settlement) {
	if s.departs {
		s.departs = false
		c.departures.end(s.ref.Key)
	}
}

// depart hands a claim that was given up to clean-up. It runs under mu.
func (c *Client) depart(r driver.Ref) {
	c.settleRef(r)
	c.cleanups[len(c.cleanups)-1].departs = true
	c.departures.begin(r.Key)
}
