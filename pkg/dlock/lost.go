package dlock

import "time"

// A lock that was lost may live on at the backend: a renewal that was not answered in time may
// have been carried out, some of several servers may still have it, and etcd lets leases begin
// anew when it has another leader. It is released when its holder says by Unlock that it has
// stopped, at Close, and else after a time in which the holder, whose context has ended, can stop.
type lostGuards map[*Guard]*time.Timer

// releaseAfter has a lost lock released after d, unless its holder does it before. It runs under mu.
func (c *Client) releaseAfter(g *Guard, d time.Duration) {
	if c.lost == nil {
		c.lost = lostGuards{}
	}
	if t := c.lost[g]; t != nil {
		t.Stop()
	}
	c.lost[g] = time.AfterFunc(d, func() {
		c.mu.Lock()
		defer c.unlock()
		c.releaseLost(g)
	})
}

// releaseLost releases, once, what the backend may still have of a lock that was lost. It runs
// under mu.
func (c *Client) releaseLost(g *Guard) {
	if t := c.lost[g]; t != nil {
		t.Stop()
		delete(c.lost, g)
	}
	if !c.closed && !g.own.released {
		g.own.released = true
		c.cleanUp(g.claim)
	}
}
