package redlock

import (
	"context"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/internal/redisnode"
)

// fill stores a held claim on nodes that lack it: a bare majority does not survive the loss of a
// node. It does so only while the claim is valid by the answers of a majority, and for no longer
// than that, so that no ended claim is stored again. It runs in the background.
func (d *redDriver) fill(c *claim, nodes []*node) {
	left, token, number, ok := d.openFill(c, nodes)
	if !ok {
		return
	}
	answers := make(chan answer, len(nodes))
	d.ask(nodes, 0, min(d.settings.patience(d.ttlOf(c)), left), c.id, func(ctx context.Context, _ *node) *redisnode.Command {
		return acquireScript.Command(ctx, c.acquireKeys(), c.id, number, millis(left), token, "0", c.info, "0", "", "0", "1")
	}, answers)
	d.work.Go(func() {
		for range nodes {
			d.answered(c, <-answers)
		}
	})
}

// openFill returns the rest of a claim's validity, its token, and the number of a round. If the claim can be filled in,
// its calls count as open from then on: a release must not come in between.
func (d *redDriver) openFill(c *claim, nodes []*node) (left time.Duration, token, number int64, ok bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	left = time.Until(c.until).Truncate(time.Millisecond)
	if c.phase != driver.Held || left <= 0 || d.closed || len(nodes) == 0 {
		return 0, 0, 0, false
	}
	for _, n := range nodes {
		c.open[n.at]++
	}
	return left, c.token, d.rounds.Add(1), true // what removes the claim from now on counts this round
}

// opened records that calls are sent to all nodes which may store claims, and returns those of the
// claims that still wait. The others must not be sent: whoever removed them did not expect a call.
func (d *redDriver) opened(claims ...*claim) (waiting []*claim) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, c := range claims {
		if c.phase != driver.Queued {
			continue
		}
		waiting = append(waiting, c)
		for i := range c.open {
			c.open[i]++
		}
	}
	return waiting
}

// answered records that such a call can no longer arrive, if that is certain.
func (d *redDriver) answered(c *claim, a answer) {
	if a.err != nil && driver.ClassOf(a.err) == driver.Ambiguous {
		return
	}
	if c.waits && a.word() == "taken" {
		d.shown(c)
	}
	d.cannotArrive(c, a.node.at)
}

// cannotArrive records that one such call to a node can no longer arrive.
func (d *redDriver) cannotArrive(c *claim, node int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	c.open[node]--
}

// shown records that nodes may list claims as waiting.
func (d *redDriver) shown(claims ...*claim) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, c := range claims {
		c.shown = true
	}
}
