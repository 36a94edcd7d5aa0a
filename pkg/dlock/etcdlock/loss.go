package etcdlock

import (
	"context"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// lose forgets a held claim whose key was deleted by another party, and notifies the engine. rev is
// the revision of the deletion, or 0 if it is not known. The caller holds mu.
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

// verifyLease checks whether a lease still exists, at most one check at a time. The caller holds
// mu.
func (d *etcdDriver) verifyLease(l *lease) {
	if l.verifying {
		return
	}
	l.verifying = true
	d.work.Go(func() {
		ctx, cancel := context.WithTimeout(d.ctx, lookTimeout)
		defer cancel()
		resp, err := d.timeToLive(ctx, l.id)
		d.mu.Lock()
		defer d.mu.Unlock()
		l.verifying = false
		if err == nil && resp.TTL < 0 { // 0 is less than a second
			d.markLeaseDead(l)
		}
	})
}

// timeToLive asks for what is left of a lease, in the background.
func (d *etcdDriver) timeToLive(ctx context.Context, id clientv3.LeaseID) (resp *clientv3.LeaseTimeToLiveResponse, err error) {
	defer recoverPanic(&err)
	return d.client.TimeToLive(ctx, id)
}

// markLeaseDead records that a lease is gone: no new claim joins it, and the claims on it are lost.
// The caller holds mu.
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

// lossEvents delivers losses to the engine. None may be dropped: the engine would never hear again
// of a claim that is not renewed. So it waits until the event queue has space.
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

// notifyLosses runs until the driver is closed.
func (d *etcdDriver) notifyLosses() {
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
