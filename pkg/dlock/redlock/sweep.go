package redlock

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/internal/redisnode"
)

// A leftover is a claim that is to be removed from one node.
type leftover struct {
	names
	id    string
	bar   time.Duration // 0: it need not be barred
	round int64         // 0: whatever round has stored it
	hides bool          // with a round: the waiter is not to be shown any more either
	by    time.Time     // when it is over by itself
}

func (o *leftover) command(ctx context.Context) *redisnode.Command {
	round, hides := "-1", "0"
	if o.round > 0 || o.hides {
		round = strconv.FormatInt(o.round, 10)
	}
	if o.hides {
		hides = "1"
	}
	return releaseScript.Command(ctx, []string{o.lock, o.names.bar(o.id), o.waiters}, o.id, millis(o.bar), round, "", o.channel, hides)
}

const (
	// leftoverMost is how much a node that is down is remembered for; beyond it, the
	// oldest is left to its lease.
	leftoverMost = 8192
	// sweepMost is how much is removed in one trip.
	sweepMost = 64
	// sweepPause is how long a node is left alone that did not answer, at most.
	sweepPause = 250 * time.Millisecond
)

// leave has something removed from the node, in the background, and again until it
// has answered: a node that was cut off has nothing of ours within a second after it
// has healed.
func (n *node) leave(what ...leftover) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.leftover = append(n.leftover, what...)
	if over := len(n.leftover) - leftoverMost; over > 0 {
		n.leftover = n.leftover[over:]
	}
	if !n.sweeping && len(n.leftover) > 0 {
		n.sweeping = true
		n.driver.work.Go(n.sweep)
	}
}

// sweep works until nothing is left. When the driver closes it tries once more.
func (n *node) sweep() {
	pause := 10 * time.Millisecond
	for {
		batch := n.take()
		if len(batch) == 0 {
			return
		}
		closing := n.driver.ctx.Err() != nil
		if closing && n.health.isSilent() {
			return
		}
		left, answered := n.remove(batch)
		n.health.heard(answered)
		if len(left) == 0 {
			pause = 10 * time.Millisecond
			continue
		}
		if closing {
			return
		}
		n.putBack(left)
		n.driver.sleep(pause)
		pause = min(2*pause, sweepPause)
	}
}

// take returns some of what is left, without what is over. If there is nothing, the
// sweeper has ended.
func (n *node) take() []leftover {
	n.mu.Lock()
	defer n.mu.Unlock()
	now := time.Now()
	var batch []leftover
	for len(n.leftover) > 0 && len(batch) < sweepMost {
		if o := n.leftover[0]; now.Before(o.by) {
			batch = append(batch, o)
		}
		n.leftover = n.leftover[1:]
	}
	if len(batch) == 0 {
		n.leftover, n.sweeping = nil, false
	}
	return batch
}

func (n *node) putBack(batch []leftover) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.leftover = append(batch, n.leftover...)
}

// remove makes one trip. It returns what is to be tried again, and whether the node has
// answered at all.
func (n *node) remove(batch []leftover) (left []leftover, answered bool) {
	ctx, cancel := context.WithTimeout(context.Background(), n.driver.settings.longest())
	defer cancel()
	var cmds []redis.Cmder
	for whole := range 2 {
		pipe := n.client.Pipeline()
		for i := range batch {
			cmd := batch[i].command(ctx)
			if whole == 1 {
				cmd = cmd.Whole(ctx)
			}
			_ = pipe.Process(ctx, cmd)
		}
		cmds, _ = pipe.Exec(ctx) // each command has its own error
		if len(cmds) == 0 || !redisnode.IsNoScript(cmds[0].Err()) {
			break
		}
	}
	if len(cmds) != len(batch) {
		return batch, false
	}
	for i, cmd := range cmds {
		if isSettled(cmd.Err()) {
			answered = true
		} else {
			left = append(left, batch[i])
		}
	}
	return left, answered
}

// isSettled reports whether a command had a reply that repeating would not change.
func isSettled(err error) bool {
	return err == nil || errors.Is(err, redis.Nil) || driver.ClassOf(redisnode.Classify(err)) == driver.Fatal
}

func (d *redDriver) sleep(t time.Duration) {
	timer := time.NewTimer(t)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-d.ctx.Done():
	}
}

// removeEverywhere has removed what the rounds so far have stored of a claim, and the claim
// barred on those nodes where a call that stores it may still arrive. What a later round stores
// stays: the caller may submit the claim again, and have it granted, before a node is reached.
// It runs under mu.
func (d *redDriver) removeEverywhere(c *claim) {
	round := d.rounds.Load()
	for i, n := range d.nodes {
		o := leftover{names: c.names, id: c.id, round: round, hides: true, by: time.Now().Add(driver.BarFor(c.ttl))}
		if c.open[i] > 0 {
			o.bar = driver.BarFor(c.ttl)
		}
		n.leave(o)
	}
}
