package dlock

import (
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
	cl := c.claims[ev.ID]
	if cl == nil || cl.key != ev.Key {
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
	case ev.State.Phase == driver.Queued, cl.phase == filing:
	case ev.State.Phase == driver.Held && ev.State.Token == cl.token:
		// Said twice.
	default:
		cl.verify = !cl.renewable()
		c.renewNow(cl)
	}
}

// takeBack releases a grant to a claim that is over here, or never was: a request that
// arrived late or twice has made it, and nobody would hold or renew it.
func (c *Client) takeBack(ev driver.Event) {
	if ev.State.Phase == driver.Held && !c.closed && c.takenBack.add(ev.ID, c.now()) {
		c.settleRef(driver.Ref{Key: ev.Key, ID: ev.ID, TTL: c.cfg.DefaultTTL})
	}
}

// takenBack remembers the last grants that were taken back: a push may be repeated.
type takenBack struct {
	ids  [16]string
	at   [16]int64
	next int
}

// add reports whether the grant was not taken back within the last second.
func (t *takenBack) add(id string, now int64) bool {
	for i, known := range t.ids {
		if known == id && now < after(t.at[i], time.Second) {
			return false
		}
	}
	t.ids[t.next], t.at[t.next] = id, now
	t.next = (t.next + 1) % len(t.ids)
	return true
}

// renewAll is for when pushes may have been lost.
func (c *Client) renewAll() {
	for _, cl := range c.claims {
		if cl.phase != filing && cl.phase != ended && cl.renewable() {
			c.renewNow(cl)
		}
	}
}
