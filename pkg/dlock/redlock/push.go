package redlock

import (
	"context"
	"errors"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ceyewan/genesis/pkg/dlock/internal/redisnode"
)

// channelPrefix stands before the name of a lock in the channel on which nodes tell
// that it was taken or is free.
const channelPrefix = "dlock:"

// An ear hears what one node publishes about the locks that this driver waits for. It
// has one connection. What it hears is a hint: who hears nothing asks now and then.
type ear struct {
	node *node

	dialing chan struct{} // has an element while the connection is made or closed

	mu          sync.Mutex           // held for moments, never while the node is asked
	pubsub      *redis.PubSub        // nil before the first wish
	wanted      map[string]time.Time // by channel: when it was last wished for
	sent        map[string]bool      // the channels that the connection was asked for
	heard       map[string]bool      // the channels that are subscribed
	established bool                 // the connection is made, and was asked for all that was wanted
	pruned      time.Time
	stirred     chan struct{}
	ended       bool
}

const (
	// quiet is how long a subscription may say nothing before it is asked whether it
	// lives: a link that is half open would never tell.
	quiet = 5 * time.Second
	// linger is how long a channel is heard after the last wish for it.
	linger = 10 * time.Second
)

// listen sees to it that a claim which waits is told. It runs under redDriver.mu.
func (d *redDriver) listen(c *claim) {
	if d.closed {
		return
	}
	for _, n := range d.nodes {
		n.ear.want(c.channel)
	}
}

func (e *ear) want(channel string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.ended {
		return
	}
	if e.wanted == nil {
		e.wanted, e.sent, e.heard = map[string]time.Time{}, map[string]bool{}, map[string]bool{}
		e.stirred, e.dialing = make(chan struct{}, 1), make(chan struct{}, 1)
		e.pubsub = e.node.client.Subscribe(e.node.driver.ctx)
		e.node.driver.work.Go(e.run)
	}
	e.wanted[channel] = time.Now()
	if e.established && !e.sent[channel] {
		e.sent[channel] = true
		pubsub := e.pubsub
		e.node.driver.work.Go(func() {
			e.tell(pubsub, func(ctx context.Context) error { return pubsub.Subscribe(ctx, channel) })
		})
	}
	select {
	case e.stirred <- struct{}{}:
	default:
	}
}

// count is how many of a channel's listeners on this node are we.
func (e *ear) count(channel string) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.heard[channel] {
		return 1
	}
	return 0
}

// close waits while the connection is being made.
func (e *ear) close() {
	e.mu.Lock()
	e.ended = true
	pubsub := e.pubsub
	e.mu.Unlock()
	if pubsub == nil {
		return
	}
	e.dialing <- struct{}{}
	_ = pubsub.Close()
	<-e.dialing
}

func (e *ear) current() *redis.PubSub {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.pubsub
}

// tell sends a command within the time that a node has. If it fails, run notices.
func (e *ear) tell(pubsub *redis.PubSub, command func(context.Context) error) {
	redisnode.Tell(pubsub, e.node.driver.settings.longest(), command)
}

// run subscribes and passes on what comes, again and again. Only subscribe opens a
// connection: it has a bound, so that Close does not wait for a dead link.
func (e *ear) run() {
	d := e.node.driver
	pause, up, asked := 10*time.Millisecond, false, false
	for d.ctx.Err() == nil {
		if !up {
			e.dropIdle()
			if !e.isWanted() {
				e.rest()
				continue
			}
			err := e.open()
			if err != nil {
				pause = e.retry(err, pause)
				continue
			}
			up, asked = true, false
		}
		msg, err := e.current().ReceiveTimeout(redisnode.NoReconnect(), quiet)
		var late net.Error
		switch {
		case err == nil:
			pause, asked = 10*time.Millisecond, false
			e.take(msg)
		case errors.As(err, &late) && late.Timeout() && !asked:
			asked = true
			pubsub := e.current()
			e.tell(pubsub, func(ctx context.Context) error { return pubsub.Ping(ctx) }) // the answer, or its absence, says more
		default:
			pause, up = e.retry(err, pause), false
		}
		e.prune()
	}
}

// retry replaces a subscription that has failed, after a pause, and returns the next
// pause. A node that refuses a subscription says so in an answer, which comes at once.
func (e *ear) retry(cause error, pause time.Duration) time.Duration {
	d := e.node.driver
	d.log.Debug("subscription failed", "node", e.node.addr, "error", cause)
	if redis.HasErrorPrefix(cause, "NOPERM") {
		d.unheard.Do(func() {
			d.log.Warn("the user has no rights to channels: waiters are not told that a lock is free, and only ask once a second",
				"node", e.node.addr, "cure", "ACL SETUSER <user> &"+channelPrefix+"*", "error", cause)
		})
	}
	e.reopen()
	d.sleep(pause)
	return min(2*pause, time.Second)
}

// rest waits for a wish.
func (e *ear) rest() {
	select {
	case <-e.stirred:
	case <-e.node.driver.ctx.Done():
	}
}

func (e *ear) isWanted() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.wanted) > 0
}

// open makes the connection and subscribes to all that is wanted.
func (e *ear) open() error {
	ctx, cancel := context.WithTimeout(e.node.driver.ctx, e.node.driver.settings.longest())
	defer cancel()
	for {
		todo := e.unsent()
		if len(todo) == 0 {
			return nil
		}
		e.dialing <- struct{}{}
		err := e.current().Subscribe(ctx, todo...)
		<-e.dialing
		if err != nil {
			return err
		}
	}
}

// unsent are the channels that are wanted and were not asked for yet. Once there are none,
// whoever wants one asks for it.
func (e *ear) unsent() (todo []string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for c := range e.wanted {
		if !e.sent[c] {
			e.sent[c] = true
			todo = append(todo, c)
		}
	}
	e.established = len(todo) == 0
	return todo
}

// reopen replaces a subscription that is dead.
func (e *ear) reopen() {
	e.mu.Lock()
	dead := e.pubsub
	clear(e.heard)
	clear(e.sent)
	e.established = false
	if !e.ended {
		e.pubsub = e.node.client.Subscribe(e.node.driver.ctx)
	}
	e.mu.Unlock()
	_ = dead.Close()
}

// prune gives up channels for which there was no wish for long.
func (e *ear) prune() {
	idle, pubsub := e.dropIdle(), e.current()
	if len(idle) > 0 {
		e.tell(pubsub, func(ctx context.Context) error { return pubsub.Unsubscribe(ctx, idle...) })
	}
}

// dropIdle forgets the channels for which there was no wish for long, and returns them.
func (e *ear) dropIdle() (idle []string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	now := time.Now()
	if now.Sub(e.pruned) < linger/4 {
		return nil
	}
	e.pruned = now
	for c, at := range e.wanted {
		if now.Sub(at) > linger {
			idle = append(idle, c)
			delete(e.wanted, c)
			delete(e.sent, c)
			delete(e.heard, c)
		}
	}
	return idle
}

// take handles what a subscription brought.
func (e *ear) take(msg any) {
	d := e.node.driver
	switch m := msg.(type) {
	case *redis.Subscription:
		if m.Kind == "subscribe" {
			d.stands(e, m.Channel)
		} else {
			e.unsubscribed(m.Channel)
		}
	case *redis.Message:
		d.told(m.Channel, m.Payload)
	}
}

// unsubscribed asks once more for a channel that was wanted again while it was given up.
func (e *ear) unsubscribed(channel string) {
	e.mu.Lock()
	delete(e.heard, channel)
	_, wanted := e.wanted[channel]
	pubsub := e.pubsub
	e.mu.Unlock()
	if wanted {
		e.tell(pubsub, func(ctx context.Context) error { return pubsub.Subscribe(ctx, channel) })
	}
}

// stands notes that a channel is heard, and reports whether that is new.
func (e *ear) stands(channel string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if _, wanted := e.wanted[channel]; !wanted || e.heard[channel] {
		return false
	}
	e.heard[channel] = true
	return true
}

// lineOf returns the line that a channel is about, nil if nobody waits there. It runs
// under mu.
func (d *redDriver) lineOf(channel string) *line {
	key, ok := strings.CutPrefix(channel, channelPrefix+d.prefix)
	if l := d.lines[key]; ok && l != nil && len(l.waiting) > 0 {
		return l
	}
	return nil
}

// stands is for a channel that an ear hears from now on: what was said before went by.
// The line is asked to look when a majority of the nodes is heard, and not once for each.
// Ears are counted under mu, so that one of them is the last of the majority.
func (d *redDriver) stands(e *ear, channel string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !e.stands(channel) {
		return
	}
	heard := 0
	for _, n := range d.nodes {
		heard += n.ear.count(channel)
	}
	if l := d.lineOf(channel); l != nil && heard == d.majority {
		d.nudge(l)
	}
}

// told is for what a node has published: "taken" and the token, or "free", the token
// and how many hear of it. The lock is tried when the first node says that it is free,
// and again when a majority has.
func (d *redDriver) told(channel, payload string) {
	part := strings.Split(payload, redisnode.Separator)
	if len(part) < 2 {
		return
	}
	token, err := strconv.ParseInt(part[1], 10, 64)
	d.mu.Lock()
	defer d.mu.Unlock()
	l := d.lineOf(channel)
	if l == nil || err != nil {
		return
	}
	l.waiting[0].unheard = 0 // lineOf returns no empty line
	if part[0] == "taken" {
		if token > l.freed { // else a node tells late what is over
			l.stopTimer()
		}
		l.taken = max(l.taken, token)
		return
	}
	if token < l.taken || token < l.freed || len(part) < 3 {
		return
	}
	if token > l.freed {
		l.freed, l.frees = token, 0
	}
	if l.frees++; l.frees == 1 || l.frees == d.majority {
		others, _ := strconv.Atoi(part[2])
		d.nudgeLater(l, d.window(others))
	}
}
