package redlock

import (
	"cmp"
	"slices"
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

// maxTurn is the longest turn that any driver gives.
const maxTurn = 30 * maxPace

// onTurn handles the message of a node that a claim of this driver is to try: "turn", the token of the lock that
// was released, the claim's place, how long a turn lasts in milliseconds, its ID, and the lock. The first tries when
// a majority has said so of one release, or soon. The others try if they hear nothing else until the turns before theirs have ended.
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
	token, isToken := d.token(part[1])
	place, _ := strconv.Atoi(part[2])
	lasts, _ := strconv.ParseInt(part[3], 10, 32)
	if !isToken || place < 1 || place > 3 || lasts < 1 || lasts > maxTurn.Milliseconds() {
		return
	}
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
		d.nudgeIn(q, time.Duration(place-1)*(time.Duration(lasts)*time.Millisecond+expiryRounding))
		return
	}
	if c.told.said == nil {
		c.told.said = slices.Repeat([]int64{unsaid}, len(d.nodes))
	}
	if c.told.said[n.at] == token {
		return
	}
	c.told.said[n.at] = token
	named, alike := c.told.count(cmp.Or(token, c.told.newest()))
	if named >= d.majority {
		c.told.after = max(c.told.after, token)
	}
	switch {
	case c.told.came:
	case alike >= d.majority:
		c.told.came = true
		d.nudge(q)
	case alike == 1:
		d.nudgeIn(q, d.turnTime()/2)
	}
}

// told is what nodes have told a claim since its last round.
type told struct {
	came  bool    // it is its turn
	said  []int64 // by node: the token of the lock that was released, 0 if another has passed its turn on, or unsaid
	after int64   // the token that a majority has named
}

// unsaid stands for a node that has said nothing.
const unsaid = -1

// newest returns the greatest token that was named, or 0.
func (t *told) newest() int64 {
	newest := t.after
	for _, s := range t.said {
		newest = max(newest, s)
	}
	return newest
}

// count returns how many nodes have named a token, and how many may speak of the same release.
func (t *told) count(token int64) (named, alike int) {
	for _, s := range t.said {
		if s == token {
			named++
		}
		if s == token || s == 0 {
			alike++
		}
	}
	return named, alike
}
