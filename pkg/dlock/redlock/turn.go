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
func (d *redDriver) turnTime() time.Duration { return max(30*d.pace.get(), 30*time.Millisecond) }

// onTurn handles the message of a node that a claim of this driver is to try: "turn", the token of the lock that
// was released, the claim's place, how long a turn lasts in milliseconds, its ID, and the lock. The first tries when
// a majority has said so, or soon. The others try if they hear nothing else until the turns before theirs have ended.
func (d *redDriver) onTurn(n *node, payload string) {
	part := strings.SplitN(payload, redisnode.Separator, 6)
	if len(part) < 6 || part[0] != "turn" {
		return
	}
	id := part[4]
	key, ok := strings.CutPrefix(part[5], d.prefix)
	if !ok {
		return
	}
	token, _ := strconv.ParseInt(part[1], 10, 64)
	place, _ := strconv.Atoi(part[2])
	lasts, _ := strconv.ParseInt(part[3], 10, 32)
	d.mu.Lock()
	defer d.mu.Unlock()
	c, q := d.claims[claimID{key, id}], d.queues[key]
	if _, late := d.released[id]; late || (c != nil && c.phase == driver.Held) {
		return // it had its turn, and this node says so late
	}
	if c == nil || c.phase != driver.Queued || q == nil {
		n.leave(leftover{names: d.namesOf(key), id: id, hides: true, by: time.Now().Add(driver.TombstoneTTL(0))})
		return
	}
	if d.first(q, time.Now()) != c || d.closed {
		return
	}
	c.unheard = 0
	if place != 1 {
		d.nudgeIn(q, time.Duration(max(place-1, 1))*(time.Duration(lasts)*time.Millisecond+expiryRounding))
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
		d.nudgeIn(q, d.turnTime()/2)
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
