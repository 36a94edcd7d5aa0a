package redlock

import (
	"context"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/internal/redisnode"
)

// fill stores a claim that is held on nodes that lack it: a bare majority has nothing
// to spare. It does so only while the claim is valid by what a majority has answered,
// and for no longer than that, so that nothing comes back to life. It runs in the
// background.
func (d *redDriver) fill(c *claim, nodes []*node) {
	left, token, ok := d.openFill(c, nodes)
	if !ok {
		return
	}
	answers := make(chan answer, len(nodes))
	number := d.rounds.Add(1)
	d.ask(nodes, 0, min(d.settings.patience(d.ttlOf(c)), left), c.id, func(ctx context.Context, _ *node) *redisnode.Command {
		return acquireScript.Command(ctx, []string{c.lock, c.fence, c.bar(c.id), c.waiters}, c.id, number, millis(left), token, "0", c.info)
	}, answers)
	d.work.Go(func() {
		for range nodes {
			d.answered(c, <-answers)
		}
	})
}

// openFill returns what is left of a claim's validity, and its token. If the claim can be filled
// in, calls count as opened from then on: a release must not come in between.
func (d *redDriver) openFill(c *claim, nodes []*node) (left time.Duration, token int64, ok bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	left = time.Until(c.until).Truncate(time.Millisecond)
	if c.phase != driver.Held || left <= 0 || d.closed || len(nodes) == 0 {
		return 0, 0, false
	}
	for _, n := range nodes {
		c.open[n.at]++
	}
	return left, c.token, true
}

// opened notes that calls go out which may store a claim on nodes.
func (d *redDriver) opened(c *claim, nodes []*node) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, n := range nodes {
		c.open[n.at]++
	}
}

// answered notes that such a call cannot arrive any more, if that is certain.
func (d *redDriver) answered(c *claim, a answer) {
	if a.err != nil && driver.ClassOf(a.err) == driver.Ambiguous {
		return
	}
	if c.waits && a.word() == "taken" {
		d.shown(c)
	}
	d.settled(c, a.node.at)
}

// settled notes that one such call to a node cannot arrive any more.
func (d *redDriver) settled(c *claim, node int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	c.open[node]--
}

// shown notes that nodes may show that claims wait.
func (d *redDriver) shown(claims ...*claim) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, c := range claims {
		c.shown = true
	}
}
