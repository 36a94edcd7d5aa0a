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
		c.releaseUnknownGrant(ev)
		return
	}
	isGrant := ev.State.Phase == driver.Held && !cl.unanswered // otherwise it may be an old grant that has ended
	switch {
	case cl.phase == ended: // its release is in progress
	case isGrant && cl.phase == queued:
		c.grant(cl, ev.State.Token, c.now())
		c.reschedule(cl)
	case isGrant && cl.phase == submitting:
		// The answer that sets the deadline has not arrived yet.
		cl.pushedGrant, cl.token = true, ev.State.Token
	case cl.phase == submitting && ev.State.Phase == driver.Unknown:
		cl.renewAgain = true // the answer that has not arrived yet may be older than the push
	case cl.phase == submitting && ev.State.Phase == driver.Gone:
		cl.renewAgain, cl.pushedGrant, cl.pushedGone = true, false, true
	case ev.State.Phase == driver.Queued, cl.phase == submitting:
	case ev.State.Phase == driver.Held && ev.State.Token == cl.token:
		// A repeated push.
	default:
		c.verifyNow(cl)
	}
}

// releaseUnknownGrant releases a grant to a claim that is unknown here. It comes from a request
// that arrived late or twice, and no caller would hold or renew it. An event with a token is a
// grant even if the driver does not report it as held yet.
func (c *Client) releaseUnknownGrant(ev driver.Event) {
	isGrant := ev.State.Phase == driver.Held || ev.State.Phase == driver.Unknown && ev.State.Token != 0
	if isGrant && !c.closed && c.ignored.add(ev.ID, after(c.now(), time.Second), c.now()) {
		c.cleanUpRef(driver.Ref{Key: ev.Key, ID: ev.ID, TTL: c.cfg.DefaultTTL})
	}
}

// ignoredIDs are the IDs of claims that have ended here and whose pushes are ignored for some
// time: unknown grants that were released, whose push may be repeated, and lost locks, whose
// holder has the rest of the lease to stop.
type ignoredIDs struct {
	until  map[string]int64
	pruned int64
}

const maxIgnored = 1024

// add adds an ID, and reports whether it was not ignored before. If there are too many IDs,
// it does not add the ID.
func (s *ignoredIDs) add(id string, until, now int64) bool {
	if now < s.until[id] {
		return false
	}
	if s.until == nil {
		s.until = map[string]int64{}
	}
	if len(s.until) >= maxIgnored && now >= after(s.pruned, time.Second) {
		s.pruned = now
		maps.DeleteFunc(s.until, func(_ string, at int64) bool { return at <= now })
	}
	if len(s.until) < maxIgnored {
		s.until[id] = until
	}
	return true
}

// renewAll renews all claims, because pushes may have been lost. One that has no answer yet is renewed after it, and the push of
// its grant is not believed: the grant may have ended since.
func (c *Client) renewAll() {
	for cl := range c.claims.all() {
		switch cl.phase {
		case ended:
		case submitting:
			cl.renewAgain, cl.pushedGrant = true, false
		default:
			c.verifyNow(cl)
		}
	}
}
