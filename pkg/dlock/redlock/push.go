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

// channelPrefix precedes the name of a lock in the channel on which nodes publish that it was taken
// or is free.
const channelPrefix = "dlock:"

// A subscription receives what one node publishes about the locks that this driver waits for, over
// one connection. The messages are hints: without them, a waiter asks from time to time.
type subscription struct {
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
	// quiet is how long a subscription may be silent before it is pinged: a half-open connection
	// would never report its end.
	quiet = 5 * time.Second
	// linger is how long a channel stays subscribed after the last request for it.
	linger = 10 * time.Second
)

// listen makes sure that a waiting claim receives messages. The caller holds redDriver.mu.
func (d *redDriver) listen(c *claim) {
	if d.closed {
		return
	}
	for _, n := range d.nodes {
		n.subscription.want(c.channel)
	}
}

func (e *subscription) want(channel string) {
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

// count returns how many of a channel's subscribers on this node belong to this driver: 0 or 1.
func (e *subscription) count(channel string) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.heard[channel] {
		return 1
	}
	return 0
}

// close waits while the connection is being established.
func (e *subscription) close() {
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

func (e *subscription) current() *redis.PubSub {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.pubsub
}

// tell sends a command within the node timeout. If it fails, run notices.
func (e *subscription) tell(pubsub *redis.PubSub, command func(context.Context) error) {
	redisnode.Tell(pubsub, e.node.driver.settings.longest(), command)
}

// run subscribes and forwards messages, and reconnects after failures. Only subscribe opens a
// connection: it has a timeout, so that Close does not wait for a dead link.
func (e *subscription) run() {
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

// retry replaces a failed subscription after a pause and returns the next pause. A node that
// refuses a subscription answers at once.
func (e *subscription) retry(cause error, pause time.Duration) time.Duration {
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

// rest waits for a channel to be requested.
func (e *subscription) rest() {
	select {
	case <-e.stirred:
	case <-e.node.driver.ctx.Done():
	}
}

func (e *subscription) isWanted() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.wanted) > 0
}

// open establishes the connection and subscribes to all wanted channels.
func (e *subscription) open() error {
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

// unsent returns the wanted channels that were not requested yet. Once there are none, each caller
// requests its own channel.
func (e *subscription) unsent() (todo []string) {
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

// reopen replaces a dead subscription.
func (e *subscription) reopen() {
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

// prune unsubscribes from channels that were not requested for a long time.
func (e *subscription) prune() {
	idle, pubsub := e.dropIdle(), e.current()
	if len(idle) > 0 {
		e.tell(pubsub, func(ctx context.Context) error { return pubsub.Unsubscribe(ctx, idle...) })
	}
}

// dropIdle forgets the channels that were not requested for a long time, and returns them.
func (e *subscription) dropIdle() (idle []string) {
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

// take handles a message of a subscription.
func (e *subscription) take(msg any) {
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

// unsubscribed requests a channel again that was wanted again while it was being unsubscribed.
func (e *subscription) unsubscribed(channel string) {
	e.mu.Lock()
	delete(e.heard, channel)
	_, wanted := e.wanted[channel]
	pubsub := e.pubsub
	e.mu.Unlock()
	if wanted {
		e.tell(pubsub, func(ctx context.Context) error { return pubsub.Subscribe(ctx, channel) })
	}
}

// stands records that a channel is subscribed, and reports whether that is new.
func (e *subscription) stands(channel string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if _, wanted := e.wanted[channel]; !wanted || e.heard[channel] {
		return false
	}
	e.heard[channel] = true
	return true
}

// queueOf returns the queue of a channel, or nil if it has no waiter. The caller holds mu.
func (d *redDriver) queueOf(channel string) *waitQueue {
	key, ok := strings.CutPrefix(channel, channelPrefix+d.prefix)
	if q := d.queues[key]; ok && q != nil && len(q.waiting) > 0 {
		return q
	}
	return nil
}

// stands handles a channel that is subscribed from now on: earlier messages were missed. The queue
// is rechecked once, when a majority of the nodes is subscribed. Subscriptions are counted under
// mu, so that exactly one of them completes the majority.
func (d *redDriver) stands(e *subscription, channel string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !e.stands(channel) {
		return
	}
	heard := 0
	for _, n := range d.nodes {
		heard += n.subscription.count(channel)
	}
	if q := d.queueOf(channel); q != nil && heard == d.majority {
		d.nudge(q)
	}
}

// told handles a message of a node: "taken" and the token, or "free", the token and the number of
// subscribers. The claim tries the lock when the first node says that it is free, and again when a
// majority has said so.
func (d *redDriver) told(channel, payload string) {
	part := strings.Split(payload, redisnode.Separator)
	if len(part) < 2 {
		return
	}
	token, err := strconv.ParseInt(part[1], 10, 64)
	d.mu.Lock()
	defer d.mu.Unlock()
	q := d.queueOf(channel)
	if q == nil || err != nil {
		return
	}
	q.waiting[0].unheard = 0 // queueOf returns no empty queue
	if part[0] == "taken" {
		if token > q.freed { // else a node tells late what is over
			q.stopTimer()
		}
		q.taken = max(q.taken, token)
		return
	}
	if token < q.taken || token < q.freed || len(part) < 3 {
		return
	}
	if token > q.freed {
		q.freed, q.frees = token, 0
	}
	q.frees++
	if q.frees == 1 || q.frees == d.majority {
		others, _ := strconv.Atoi(part[2])
		d.nudgeLater(q, d.window(others))
	}
}
