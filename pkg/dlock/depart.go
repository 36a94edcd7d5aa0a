package dlock

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// departures are the claims on a remote backend that their callers have given up, and whose
// first release is not answered yet. A later call of this Client that does not queue waits for
// them. Otherwise it could be refused because of a waiter of the same Client that has gone.
type departures struct {
	count atomic.Int32 // of keys, so that most calls need not lock mu

	// Under client.mu.
	byKey map[string]*departure
}

// A departure counts the claims of one key that were given up, and those of them whose
// release was tried. A call waits for the claims that were given up before it began, and not
// for later ones.
type departure struct {
	begun, ended int
	changed      chan struct{} // closed when a release was tried; nil unless a call waits
}

// departTimeout is how long a call waits for departures.
const departTimeout = 200 * time.Millisecond

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

// awaitDepartures waits for the claims on key that were given up before. It uses at most a
// quarter of the time that its caller has.
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
	timeout := departTimeout
	if at, ok := ctx.Deadline(); ok {
		timeout = min(timeout, time.Until(at)/4)
	}
	t := time.NewTimer(timeout)
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

// departed records that the release of a claim was tried, with any result. It runs under mu.
func (c *Client) departed(s *cleanupTask) {
	if s.departs {
		s.departs = false
		c.departures.end(s.ref.Key)
	}
}

// depart hands a claim that was given up to cleanup. It runs under mu.
func (c *Client) depart(r driver.Ref) {
	c.cleanUpRef(r)
	c.cleanups[len(c.cleanups)-1].departs = true
	c.departures.begin(r.Key)
}
