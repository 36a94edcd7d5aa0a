package dlock

import (
	"maps"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// dispatch delivers a push to its claim. A push is a hint: it can deliver a grant, but any
// other content only causes a renewal of the claim, and the answer to that decides.
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
	isGrant := ev.State.Phase == driver.Held && !cl.unanswered // otherwise it may be an old grant that has ended
	switch {
	case cl.phase == ended: // its release is in progress
	case isGrant && cl.phase == queued:
		c.grant(cl, ev.State.Token, c.now())
		c.place(cl)
	case isGrant && cl.phase == submitting:
		// The answer that sets the deadline has not arrived yet.
		cl.pushed, cl.token = true, ev.State.Token
	case cl.phase == submitting && ev.State.Phase == driver.Unknown:
		cl.again = true // the answer that has not arrived yet may be older than the hint
	case cl.phase == submitting && ev.State.Phase == driver.Gone:
		cl.again, cl.pushed, cl.doubted = true, false, true
	case ev.State.Phase == driver.Queued, cl.phase == submitting:
	case ev.State.Phase == driver.Held && ev.State.Token == cl.token:
		// A repeated push.
	default:
		c.verifyNow(cl)
	}
}

// takeBack releases a grant to a claim that is unknown here. A request that arrived late or
// twice has made it, and no caller would hold or renew it. An event with a token is a grant
// even if the driver does not report it as held yet.
func (c *Client) takeBack(ev driver.Event) {
	isGrant := ev.State.Phase == driver.Held || ev.State.Phase == driver.Unknown && ev.State.Token != 0
	if isGrant && !c.closed && c.strays.ignore(ev.ID, after(c.now(), time.Second), c.now()) {
		c.cleanUpRef(driver.Ref{Key: ev.Key, ID: ev.ID, TTL: c.cfg.DefaultTTL})
	}
}

// strays are the IDs of claims that have ended here and whose pushes are ignored for some
// time: grants that were taken back, whose push may be repeated, and lost locks, whose holder
// keeps the rest of the lease to stop.
type strays struct {
	until  map[string]int64
	pruned int64
}

const maxStrays = 1024

// ignore adds an ID, and reports whether it was not ignored before. If there are too many IDs,
// it is not added.
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

// renewAll renews all claims, because pushes may have been lost.
func (c *Client) renewAll() {
	for cl := range c.claims.all() {
		if cl.phase != submitting && cl.phase != ended {
			c.verifyNow(cl)
		}
	}
}
