package redislock

import (
	"context"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock/internal/redisnode"
)

// This file moves the subscription of a slot to another connection.

// replace removes a slot from this connection and subscribes it at its current master.
func (c *subscription) replace(slot int, addr string) {
	l := c.all
	l.mu.Lock()
	defer l.mu.Unlock()
	s := c.slots[slot]
	if s == nil || s.conn != c {
		return // the driver has already unsubscribed or moved it
	}
	delete(c.slots, slot)
	if c.connection != nil {
		c.connection.Drop(s.channel)
	}
	s.conn, s.confirmed = nil, false
	pause := s.pause.Next(redisnode.MaxBackoff) // two masters may redirect to each other while the slot moves
	l.driver.work.Go(func() {
		if addr == "" {
			l.reload()
		}
		if l.driver.sleep(pause) {
			l.subscribe(s, addr)
		}
	})
}

// reload fetches the state of the cluster.
func (l *subscriptions) reload() {
	if l.driver.cluster == nil {
		return
	}
	ctx, cancel := context.WithTimeout(l.driver.ctx, tripTimeout)
	defer cancel()
	_ = l.driver.masterAt(ctx, "")
}

// sweep ends the subscriptions of slots without a waiter, and moves those whose master has changed.
// It reports whether any remains.
func (c *subscription) sweep(connection *redisnode.Subscription) bool {
	l, d := c.all, c.all.driver
	if d.cluster == nil {
		return true
	}
	waiting := d.waitingSlots()
	var unused []string
	l.mu.Lock()
	for slot, s := range c.slots {
		if !waiting[slot] && time.Since(s.used) >= sweepPause {
			delete(c.slots, slot)
			delete(l.slots, slot)
			unused = append(unused, s.channel)
		}
	}
	l.mu.Unlock()
	connection.Drop(unused...)
	connection.Unsubscribe(unused...)
	for slot := range waiting {
		c.checkMaster(connection, slot)
	}
	return c.needed()
}

// waitingSlots returns the slots in which a claim waits.
func (d *redisDriver) waitingSlots() map[int]bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	waiting := map[int]bool{}
	for _, w := range d.waiting {
		waiting[w.slot] = true
	}
	return waiting
}

// checkMaster moves a slot whose master has changed: a master that has become a replica keeps its
// subscribers.
func (c *subscription) checkMaster(connection *redisnode.Subscription, slot int) {
	l := c.all
	l.mu.Lock()
	s := c.slots[slot]
	l.mu.Unlock()
	if s == nil {
		return
	}
	client, err := l.masterOf(s, "")
	if err == nil && client.Options().Addr != c.addr {
		connection.Unsubscribe(s.channel)
		c.replace(slot, "")
	}
}

// relocate looks up every slot again. Slots whose master has changed move to the connection of the
// new master.
func (c *subscription) relocate() {
	l := c.all
	l.mu.Lock()
	var all []*slotSubscription
	for _, s := range c.slots {
		all = append(all, s)
	}
	l.mu.Unlock()
	for _, s := range all {
		client, err := l.masterOf(s, "")
		switch {
		case err != nil:
		case l.addrOf(client) != c.addr:
			c.replace(s.slot, "")
		default:
			c.client = client // perhaps another one for the same address
		}
	}
}
