package etcdlock

import (
	"context"
	"sync"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// lose forgets a held claim whose key has gone by no doing of ours, and tells the engine.
// rev is when, 0 if that is not known. It runs under mu.
func (d *etcdDriver) lose(c *claim, rev int64) {
	if d.claims[c.id] != c || c.ending { // its release finds out
		return
	}
	l := c.lease
	d.forget(c)
	d.losses.add(c)
	if rev == 0 || l.dead || len(l.claims) == 0 {
		return
	}
	if l.goneAt == rev { // two at once: the lease has probably gone, with all the others
		d.verifyLease(l)
	}
	l.goneAt = rev
}

// verifyLease looks whether a lease is still there, at most once at a time. It runs under
// mu.
func (d *etcdDriver) verifyLease(l *lease) {
	if l.verifying {
		return
	}
	l.verifying = true
	d.work.Go(func() {
		ctx, cancel := context.WithTimeout(d.ctx, lookBound)
		defer cancel()
		resp, err := d.client.TimeToLive(ctx, l.id)
		d.mu.Lock()
		defer d.mu.Unlock()
		l.verifying = false
		if err == nil && resp.TTL < 0 { // 0 is less than a second
			d.markLeaseDead(l)
		}
	})
}

// markLeaseDead takes in that a lease is gone: no new claim joins it, and those on it are lost. It
// runs under mu.
func (d *etcdDriver) markLeaseDead(l *lease) {
	l.dead = true
	if d.leases[l.seconds] == l {
		delete(d.leases, l.seconds)
	}
	for _, c := range l.claims {
		onOther := !c.lease.dead || (c.other != nil && !c.other.dead)
		if c.phase != driver.Unknown && !onOther {
			d.lose(c, 0)
		}
	}
}

// lossEvents delivers losses to the engine. None may be lost: a claim that is not renewed
// would never be told again. So it waits for room among the events, whatever there is to
// tell.
type lossEvents struct {
	mu      sync.Mutex
	pending []driver.Event
	wake    chan struct{} // buffered by one
}

func (e *lossEvents) add(c *claim) {
	e.mu.Lock()
	e.pending = append(e.pending, driver.Event{Key: c.key, ID: c.id, State: driver.State{Phase: driver.Gone}})
	e.mu.Unlock()
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

func (e *lossEvents) take() []driver.Event {
	e.mu.Lock()
	defer e.mu.Unlock()
	events := e.pending
	e.pending = nil
	return events
}

// tellLosses runs until the driver is closed.
func (d *etcdDriver) tellLosses() {
	for {
		select {
		case <-d.losses.wake:
		case <-d.ctx.Done():
			return
		}
		for _, ev := range d.losses.take() {
			for events := d.Events(); len(events) > cap(events)/2; {
				if !sleep(d.ctx, time.Millisecond) {
					return
				}
			}
			d.Send(ev)
		}
	}
}
