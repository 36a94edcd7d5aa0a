package dlock

import "time"

// lostGuards are the guards of lost locks that the backend may still store: a renewal that was
// not answered in time may have succeeded, some of several servers may still have the lock, and
// etcd restarts leases when it has a new leader. Such a lock is released when its holder calls
// Unlock, at Close, or after a time in which the holder, whose context has ended, can stop.
type lostGuards map[*Guard]*time.Timer

// releaseAfter releases a lost lock after d, unless its holder unlocks it before. It runs under mu.
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

// releaseLost releases a lost lock, once, because the backend may still store it. It runs under
// mu.
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
