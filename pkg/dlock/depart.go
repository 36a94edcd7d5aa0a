package dlock

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// departures are the claims on a remote backend that their callers have given up, and whose
// first release is still to be answered. A later call of this Client that does not wait for
// the key comes after it: it would else be refused because of a waiter of its own that has
// gone.
type departures struct {
	count atomic.Int32 // of keys, so that most calls need not look

	// Under client.mu.
	byKey map[string]*departure
}

// A departure counts the claims of one key that were given up, and those of them whose
// release was tried. A call waits for as many as there were when it came: those who give up
// after it do not put it off.
type departure struct {
	begun, ended int
	changed      chan struct{} // nil unless a call waits for the next to end
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
		d.byKey[key] = &departure{}
		d.count.Add(1)
	}
	d.byKey[key].begun++
}

// end runs under mu.
func (d *departures) end(key string) {
	one := d.byKey[key]
	one.ended++
	if one.changed != nil {
		close(one.changed)
		one.changed = nil
	}
	if one.ended == one.begun {
		delete(d.byKey, key)
		d.count.Add(-1)
	}
}

// awaitDepartures waits for the claims on key that were given up before, and for no more
// than a part of what its caller has.
func (c *Client) awaitDepartures(ctx context.Context, key string) error {
	if c.departures.count.Load() == 0 {
		return nil
	}
	c.mu.Lock()
	one, target := c.departures.byKey[key], 0
	if one != nil {
		target = one.begun
	}
	c.mu.Unlock()
	if one == nil {
		return nil
	}
	bound := departBound
	if at, ok := ctx.Deadline(); ok {
		bound = min(bound, time.Until(at)/4)
	}
	t := time.NewTimer(bound)
	defer t.Stop()
	for {
		c.mu.Lock()
		over := one.ended >= target
		if one.changed == nil {
			one.changed = make(chan struct{})
		}
		changed := one.changed
		c.mu.Unlock()
		if over {
			return nil
		}
		select {
		case <-changed:
		case <-t.C:
			return nil
		case <-ctx.Done():
			return ctxError(ctx)
		case <-c.closing.Done():
			return ErrClosed
		}
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
