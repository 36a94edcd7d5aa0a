package redlock

import (
	"slices"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// A shortening is a call that shortens a lease to ttl, and can arrive until by.
type shortening struct {
	ttl  time.Duration
	by   time.Time
	over []time.Time // for each node, when its answer was received; zero if the call may still arrive
}

// mayFollow reports whether the call may arrive at a node after one that was sent at a time.
func (s *shortening) mayFollow(node int, sent time.Time) bool {
	return sent.Before(s.by) && (s.over[node].IsZero() || !s.over[node].Before(sent))
}

// isOver reports whether the call cannot arrive at any node any more.
func (s *shortening) isOver(now time.Time) bool {
	return !now.Before(s.by) || !slices.ContainsFunc(s.over, time.Time.IsZero)
}

// renewing records the TTL that a claim is renewed with. A call that shortens the lease and is not
// answered may arrive later, so the driver relies on no more than the shorter lease until then.
func (d *redDriver) renewing(c *claim, ttl time.Duration) (token, round int64, shorter *shortening) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if ttl < c.ttl {
		shorter = &shortening{ttl: ttl, by: time.Now().Add(driver.TombstoneTTL(ttl)), over: make([]time.Time, len(d.nodes))}
		c.shorter = append(c.shorter, shorter)
	}
	c.ttl = ttl
	c.renewals++
	return c.token, c.round, shorter
}

// confirmed returns the lease that a majority has at least, of the nodes that have renewed a claim: those at which a shorter
// call may arrive later count with its TTL.
func (d *redDriver) confirmed(c *claim, ttl time.Duration, sent time.Time, yes []int) time.Duration {
	leases := make([]time.Duration, len(yes))
	for i, node := range yes {
		leases[i] = ttl
		for _, s := range c.shorter {
			if s.mayFollow(node, sent) {
				leases[i] = min(leases[i], s.ttl)
			}
		}
	}
	slices.Sort(leases)
	return leases[len(leases)-d.majority]
}

// arrived records that a call which shortens a lease has been answered by a node, or cannot arrive there.
func (d *redDriver) arrived(s *shortening, n *node) {
	d.mu.Lock()
	defer d.mu.Unlock()
	s.over[n.at] = time.Now()
}

// drained records that the nodes have answered a renewal, or will not. A shortening that has arrived at all nodes still counts for
// renewals that were sent before: at a node, it may have arrived after them.
func (d *redDriver) drained(c *claim, p *poll) {
	d.mu.Lock()
	defer d.mu.Unlock()
	c.renewals--
	c.apart = c.apart && p.denied
	if c.renewals == 0 {
		now := time.Now()
		c.shorter = slices.DeleteFunc(c.shorter, func(s *shortening) bool { return s.isOver(now) })
	}
}
