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

// A leftover is a claim to remove from one node.
type leftover struct {
	names
	id        string
	tombstone time.Duration // 0: it needs no tombstone
	round     int64         // 0: whatever round has stored it
	hides     bool          // with a round: the waiter is not to be shown any more either
	by        time.Time     // when it is over by itself
}

func (o *leftover) command(ctx context.Context, turn time.Duration) *redisnode.Command {
	round, hides := "-1", "0"
	if o.round > 0 || o.hides {
		round = strconv.FormatInt(o.round, 10)
	}
	if o.hides {
		hides = "1"
	}
	return releaseScript.Command(ctx, o.releaseKeys(o.id), o.id, millis(o.tombstone), round, "", o.channel, hides, millis(turn))
}

const (
	// maxLeftovers is how many leftovers are kept for a node that is down. Beyond it, the oldest
	// are left to expire.
	maxLeftovers = 8192
	// maxSweep is how many leftovers one round trip removes.
	maxSweep = 64
	// sweepPause is the longest pause before a node that did not answer is tried again.
	sweepPause = 250 * time.Millisecond
)

// leave removes leftovers from the node in the background, and retries until the node has answered:
// a node that was cut off has no leftovers of this driver within a second after it is reachable
// again.
func (n *node) leave(what ...leftover) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.leftover = append(n.leftover, what...)
	if over := len(n.leftover) - maxLeftovers; over > 0 {
		n.leftover = n.leftover[over:]
	}
	if !n.sweeping && len(n.leftover) > 0 {
		n.sweeping = true
		n.driver.work.Go(n.sweep)
	}
}

// sweep works until no leftover remains. When the driver closes, it tries once more.
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

// take returns some of the leftovers, without the expired ones. If there are none, the sweeper has
// ended.
func (n *node) take() []leftover {
	n.mu.Lock()
	defer n.mu.Unlock()
	now := time.Now()
	var batch []leftover
	for len(n.leftover) > 0 && len(batch) < maxSweep {
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

// remove makes one round trip. It returns the leftovers to try again, and whether the node has
// answered at all.
func (n *node) remove(batch []leftover) (left []leftover, answered bool) {
	ctx, cancel := context.WithTimeout(context.Background(), n.driver.settings.longest())
	defer cancel()
	var cmds []redis.Cmder
	for whole := range 2 {
		cmds = n.send(ctx, batch, whole == 1)
		if len(cmds) == 0 || !redisnode.IsNoScript(cmds[0].Err()) {
			break
		}
	}
	if len(cmds) != len(batch) {
		return batch, false
	}
	for i, cmd := range cmds {
		if isFinal(cmd.Err()) {
			answered = true
		} else {
			left = append(left, batch[i])
		}
	}
	return left, answered
}

// send makes one round trip, with the full scripts if the node does not know them. It returns no commands if a hook
// panicked.
func (n *node) send(ctx context.Context, batch []leftover, whole bool) (cmds []redis.Cmder) {
	var panicked error
	defer recovered(&panicked)
	pipe := n.client.Pipeline()
	for i := range batch {
		cmd := batch[i].command(ctx, n.driver.turnTime())
		if whole {
			cmd = cmd.Whole(ctx)
		}
		_ = pipe.Process(ctx, cmd)
	}
	return redisnode.Execute(ctx, pipe)
}

// isFinal reports whether a command had a reply that a retry would not change.
func isFinal(err error) bool {
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

// removeEverywhere makes every node remove what the rounds so far have stored for a claim, and keep
// a tombstone if a call that stores the claim may still arrive. Data of a later round stays: the
// caller may submit the claim again, and get it granted, before a node is reached. The caller holds
// mu.
func (d *redDriver) removeEverywhere(c *claim) {
	round := d.rounds.Load()
	for i, n := range d.nodes {
		o := leftover{names: c.names, id: c.id, round: round, hides: true, by: time.Now().Add(driver.TombstoneTTL(c.ttl))}
		if c.open[i] > 0 {
			o.tombstone = driver.TombstoneTTL(c.ttl)
		}
		n.leave(o)
	}
}
