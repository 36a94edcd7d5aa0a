package dlock

import "github.com/ceyewan/genesis/pkg/dlock/driver"

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
	cl := c.claims[ev.ID]
	if cl == nil || cl.key != ev.Key {
		return
	}
	isGrant := ev.State.Phase == driver.Held && !cl.unsettled // else it may be of an earlier attempt, and over
	switch {
	case isGrant && cl.phase == queued:
		c.grant(cl, ev.State.Token, c.now())
		c.place(cl)
	case isGrant && cl.phase == filing:
		// The answer that tells the deadline is still on its way.
		cl.pushed, cl.token = true, ev.State.Token
	case ev.State.Phase == driver.Queued, cl.phase == filing:
	case ev.State.Phase == driver.Held && ev.State.Token == cl.token-int64(cl.passed):
		// Said twice.
	default:
		c.renewNow(cl)
	}
}

// renewAll is for when pushes may have been lost.
func (c *Client) renewAll() {
	for _, cl := range c.claims {
		if cl.phase != filing && cl.renewable() {
			c.renewNow(cl)
		}
	}
}
