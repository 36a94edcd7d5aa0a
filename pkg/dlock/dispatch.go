package dlock

import (
	"maps"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// dispatch takes a push to the claim that it is for. A push is a hint: it can
// deliver a grant, but whatever else it says only makes the claim be renewed
// at once, and the answer to that decides.
func (c *Client) dispatch(ev driver.Event) {
	c.mu.Lock()
	defer c.unlock()
	if ev.ID == "" {
		c.renewAll()
		return
	}
	cl := c.claims.find(ev.Key, ev.ID)
	if cl == nil {
		c.takeBack(ev)
		return
	}
	isGrant := ev.State.Phase == driver.Held && !cl.unsettled // else it may be of an earlier attempt, and over
	switch {
	case cl.phase == ended: // its release is under way
	case isGrant && cl.phase == queued:
		c.grant(cl, ev.State.Token, c.now())
		c.place(cl)
	case isGrant && cl.phase == filing:
		// The answer that tells the deadline is still on its way.
		cl.pushed, cl.token = true, ev.State.Token
	case cl.phase == filing && ev.State.Phase == driver.Unknown:
		cl.again = true // the answer that is on its way may be older than the hint
	case cl.phase == filing && ev.State.Phase == driver.Gone:
		cl.again, cl.pushed, cl.doubted = true, false, true
	case ev.State.Phase == driver.Queued, cl.phase == filing:
	case ev.State.Phase == driver.Held && ev.State.Token == cl.token:
		// Said twice.
	default:
		c.verifyNow(cl)
	}
}

// takeBack releases a grant to a claim that is over here, or never was: a request that
// arrived late or twice has made it, and nobody would hold or renew it. A token tells of a
// grant also if the driver does not call it held yet.
func (c *Client) takeBack(ev driver.Event) {
	isGrant := ev.State.Phase == driver.Held || ev.State.Phase == driver.Unknown && ev.State.Token != 0
	if isGrant && !c.closed && c.strays.ignore(ev.ID, after(c.now(), time.Second), c.now()) {
		c.settleRef(driver.Ref{Key: ev.Key, ID: ev.ID, TTL: c.cfg.DefaultTTL})
	}
}

// strays are the IDs of claims that are over here and of which a push is ignored until a
// time: a grant that was taken back, whose push may be repeated, and a lock that was lost,
// whose holder is to have the rest of its lease.
type strays struct {
	until  map[string]int64
	pruned int64
}

const maxStrays = 1024

// ignore reports whether the ID was not ignored yet. If there are too many, it is not
// remembered.
func (s *strays) ignore(id string, until, now int64) bool {
	if now < s.until[id] {
		return false
	}
	if s.until == nil {
		s.until = map[string]int64{}
	}
	if len(s.until) >= maxStrays && now >= after(s.pruned, time.Second) {
		s.pruned = now
		maps.DeleteFunc(s.until, func(_ string, at int64) bool { return at <= now })
	}
	if len(s.until) < maxStrays {
		s.until[id] = until
	}
	return true
}

// renewAll is for when pushes may have been lost.
func (c *Client) renewAll() {
	for cl := range c.claims.all() {
		if cl.phase != filing && cl.phase != ended {
			c.verifyNow(cl)
		}
	}
}
