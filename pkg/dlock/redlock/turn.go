package redlock

import (
	"strconv"
	"strings"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/internal/redisnode"
)

// A release tells the claim that has waited longest that it is its turn, and each node leaves the lock to
// that claim for a moment. This only chooses who tries next: a round decides who has the lock, as always, and
// whoever finds it free may win. docs/adr/0023-redlock-turns.md says why.

// turnTime returns how long only the claim whose turn it is may try: some times as long as it takes to win.
func (d *redDriver) turnTime() time.Duration { return max(10*d.pace.get(), 10*time.Millisecond) }

// onTurn handles the message of a node that a claim of this driver is to try: "turn", the token of the lock that
// was released, whether the claim is the first or the second, its ID, and the lock. The first tries when a
// majority has said so, or soon. The second tries if it hears nothing else for as long as the first may take.
func (d *redDriver) onTurn(n *node, payload string) {
	part := strings.SplitN(payload, redisnode.Separator, 5)
	if len(part) < 5 || part[0] != "turn" {
		return
	}
	key, ok := strings.CutPrefix(part[4], d.prefix)
	if !ok {
		return
	}
	token, _ := strconv.ParseInt(part[1], 10, 64)
	d.mu.Lock()
	defer d.mu.Unlock()
	c, q := d.claims[claimID{key, part[3]}], d.queues[key]
	if c == nil || c.phase != driver.Queued || q == nil {
		n.leave(leftover{names: d.namesOf(key), id: part[3], hides: true, by: time.Now().Add(driver.TombstoneTTL(0))})
		return
	}
	if d.first(q, time.Now()) != c || d.closed {
		return
	}
	c.unheard = 0
	if part[2] != "1" {
		d.nudgeIn(q, d.turnTime())
		return
	}
	c.told.after = max(c.told.after, token)
	if c.told.said == nil {
		c.told.said = make([]bool, len(d.nodes))
	}
	if c.told.said[n.at] {
		return
	}
	c.told.said[n.at] = true
	c.told.nodes++
	switch c.told.nodes {
	case 1:
		d.nudgeIn(q, d.window(2))
	case d.majority:
		c.told.came = true
		d.nudge(q)
	}
}

// told is what nodes have told a claim since its last round.
type told struct {
	came  bool   // it is its turn
	said  []bool // by node: it has said so
	nodes int    // how many have
	after int64  // the token of the lock that was released
}
