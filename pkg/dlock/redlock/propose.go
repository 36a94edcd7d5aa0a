package redlock

import (
	"strconv"
	"sync/atomic"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock/internal/redisnode"
)

// A clock is what a node's clock shows, by its last answer that said so. It only chooses proposals: a wrong
// one is refused, or makes a token greater than it need be.
type clock struct{ last atomic.Pointer[reading] }

// A reading is what a clock showed, in microseconds, and when.
type reading struct {
	micros int64
	at     time.Time
}

// set records what the node's clock shows now.
func (c *clock) set(micros int64) { c.last.Store(&reading{micros, time.Now()}) }

// readClock records what the node's clock shows, by an element of an answer.
func (n *node) readClock(a answer, at int) {
	if len(a.reply) <= at {
		return
	}
	if micros, err := strconv.ParseInt(redisnode.Text(a.reply[at]), 10, 64); err == nil && micros > 0 && micros < maxToken {
		n.clock.set(micros)
	}
}

const (
	// maxToken is greater than every token, and than every time in microseconds until the year 2255. Scripts compare tokens as
	// floating-point numbers, which have no digits for greater ones.
	maxToken = 1<<53 - 1
	// maxAhead is how far a token may be ahead of the clocks, in microseconds, for a message that names it to be believed. A clock may
	// have been set back since.
	maxAhead = int64(24 * time.Hour / time.Microsecond)
)

// token returns a token that a message names, and whether it can be one. One node, or another program, may have published
// anything.
func (d *redDriver) token(text string) (token int64, ok bool) {
	token, err := strconv.ParseInt(text, 10, 64)
	if latest := d.latest(); latest > 0 && token > latest+maxAhead {
		return 0, false
	}
	return token, err == nil && token >= 0 && token < maxToken
}

// now returns what the node's clock shows, or 0 if that is unknown.
func (c *clock) now() int64 {
	r := c.last.Load()
	if r == nil {
		return 0
	}
	return r.micros + time.Since(r.at).Microseconds()
}

// propose begins a round of a claim. It returns the token with which a claim is to win at once, or 0 if there is none: the greatest time of
// any node, as tokens are by default. A claim that has tried before contends with others, unless it is its turn. It
// does not propose then, because the proposals of rounds that lose make nodes refuse those of others. It proposes no token twice:
// a node may have accepted it for a round that was lost, and that is about to be removed. It also returns whether a node may show that
// the claim waits.
func (d *redDriver) propose(c *claim) (proposal int64, isShown bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	was := c.told
	c.told, isShown = told{}, c.tried || c.shown
	c.tried = true
	switch {
	case was.came:
		c.proposed = max(d.latest(), was.after+1, c.proposed+1)
	case isShown:
		return 0, true
	default:
		c.proposed = d.latest()
	}
	return c.proposed, isShown
}

// latest returns the greatest time of any node, or 0 if none is known.
func (d *redDriver) latest() (t int64) {
	for _, n := range d.nodes {
		t = max(t, n.clock.now())
	}
	return t
}
