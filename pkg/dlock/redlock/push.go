package redlock

import (
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

	mu         sync.Mutex              // held for moments, never while the node is called
	connection *redisnode.Subscription // nil while there is none
	wanted     map[string]time.Time    // by channel: when it was last requested; nil before the first
	missed     map[string]bool         // channels that were wanted while there was no connection, and whose queues are not rechecked yet
	broken     bool                    // an attempt to connect has failed, or a connection has broken
	pruned     time.Time
	stirred    chan struct{}
	ended      bool
}

// linger is how long a channel stays subscribed after the last request for it.
const linger = 10 * time.Second

// listen makes sure that a waiting claim receives messages. The caller holds redDriver.mu.
func (d *redDriver) listen(c *claim) {
	if d.closed {
		return
	}
	for _, n := range d.nodes {
		n.subscription.want(d.channel)
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
		e.wanted, e.missed, e.stirred = map[string]time.Time{}, map[string]bool{}, make(chan struct{}, 1)
		e.node.driver.work.Go(e.run)
	}
	e.wanted[channel] = time.Now()
	if e.connection == nil && e.broken {
		e.missed[channel] = true
	}
	if connection := e.connection; connection != nil && connection.Want(channel) {
		e.node.driver.work.Go(func() {
			var panicked error // the channel is requested again with the next connection
			defer recovered(&panicked)
			connection.Request(channel)
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
	if e.connection != nil && e.connection.IsConfirmed(channel) {
		return 1
	}
	return 0
}

// close waits while the connection is being established.
func (e *subscription) close() {
	e.mu.Lock()
	e.ended = true
	connection := e.connection
	e.mu.Unlock()
	if connection != nil {
		connection.Close()
	}
}

// run subscribes and forwards messages while channels are wanted, and reconnects after failures.
func (e *subscription) run() {
	d := e.node.driver
	var pause redisnode.Backoff
	for d.ctx.Err() == nil {
		e.dropIdle()
		if !e.isWanted() {
			e.rest()
			continue
		}
		err := e.listen(&pause)
		e.disconnect()
		e.report(err)
		d.sleep(pause.Next(redisnode.MaxBackoff))
	}
}

// listen forwards messages until the connection breaks.
func (e *subscription) listen(pause *redisnode.Backoff) (err error) {
	defer recovered(&err)
	connection, err := e.open()
	if err != nil {
		return err
	}
	return e.receive(connection, pause)
}

// open subscribes to all wanted channels.
func (e *subscription) open() (*redisnode.Subscription, error) {
	d := e.node.driver
	connection := redisnode.NewSubscription(d.ctx, e.node.client, false, d.settings.longest())
	if !e.use(connection) {
		connection.Close()
		return nil, redis.ErrClosed
	}
	return connection, connection.Open()
}

func (e *subscription) use(connection *redisnode.Subscription) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.ended {
		return false
	}
	e.connection = connection
	for channel := range e.wanted {
		connection.Want(channel)
	}
	return true
}

// receive forwards messages until the connection breaks.
func (e *subscription) receive(connection *redisnode.Subscription, pause *redisnode.Backoff) error {
	var since time.Time
	for {
		msg, err := connection.Receive()
		if err != nil {
			pause.Lasted(since)
			return err
		}
		if msg != nil {
			if since.IsZero() {
				since = time.Now()
			}
			e.take(connection, msg)
		}
		connection.Unsubscribe(e.dropIdle()...)
	}
}

// disconnect closes the connection, which may have been dead for a while.
func (e *subscription) disconnect() {
	e.mu.Lock()
	connection := e.connection
	e.connection, e.broken = nil, true
	for channel := range e.wanted {
		e.missed[channel] = true
	}
	e.mu.Unlock()
	if connection != nil {
		connection.Close()
	}
}

// hasMissed reports whether messages of a channel that is subscribed again may have been missed, once.
func (e *subscription) hasMissed(channel string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	missed := e.missed[channel]
	delete(e.missed, channel)
	return missed
}

// report logs why a connection broke. A node that refuses a subscription answers at once.
func (e *subscription) report(cause error) {
	d := e.node.driver
	d.log.Debug("subscription failed", "node", e.node.addr, "error", cause)
	if redis.HasErrorPrefix(cause, "NOPERM") {
		d.unheard.Do(func() {
			d.log.Warn("the user has no rights to channels: waiters are not notified that a lock is free, and only ask once a second",
				"node", e.node.addr, "cure", "ACL SETUSER <user> &"+channelPrefix+"*", "error", cause)
		})
	}
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
			delete(e.missed, c)
		}
	}
	if e.connection != nil {
		e.connection.Drop(idle...)
	}
	return idle
}

// take handles a message of a subscription.
func (e *subscription) take(connection *redisnode.Subscription, msg any) {
	d := e.node.driver
	switch m := msg.(type) {
	case *redis.Subscription:
		if m.Kind == "subscribe" {
			d.onSubscribed(e, connection, m.Channel)
			break
		}
		connection.Unconfirm(m.Channel)
		if connection.IsWanted(m.Channel) { // again, while it was being unsubscribed
			connection.Request(m.Channel)
		}
	case *redis.Message:
		if m.Channel == d.channel {
			d.onTurn(e.node, m.Payload)
			break
		}
		d.onMessage(m.Channel, m.Payload)
	}
}

// queueOf returns the queue of a channel, or nil if it has no waiter. The caller holds mu.
func (d *redDriver) queueOf(channel string) *waitQueue {
	key, ok := strings.CutPrefix(channel, channelPrefix+d.prefix)
	if q := d.queues[key]; ok && q != nil && len(q.waiting) > 0 {
		return q
	}
	return nil
}

// listeners returns on how many nodes this driver is subscribed to a channel.
func (d *redDriver) listeners(channel string) (n int) {
	for _, one := range d.nodes {
		n += one.subscription.count(channel)
	}
	return n
}

// onSubscribed handles a channel that is subscribed from now on: earlier messages were missed. A queue is rechecked once
// when a majority of the nodes is subscribed to its channel and to that of the driver. Subscriptions are counted under mu,
// so that exactly one of them completes the majority. A queue is also rechecked once after each connection that broke: the
// connections to other nodes may be dead as well, and are counted until that is noticed.
func (d *redDriver) onSubscribed(e *subscription, connection *redisnode.Subscription, channel string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !connection.Confirm(channel) {
		return
	}
	subscribed := d.listeners(channel)
	if subscribed < d.majority {
		return
	}
	asks := func(keyChannel, other string) bool {
		missed := connection.IsConfirmed(other) && e.hasMissed(keyChannel)
		return d.listeners(other) >= d.majority && (missed || subscribed == d.majority)
	}
	if channel != d.channel {
		if q := d.queueOf(channel); asks(channel, d.channel) && q != nil {
			d.nudge(q)
		}
		return
	}
	for _, q := range d.queues {
		if keyChannel := channelPrefix + d.prefix + q.key; asks(keyChannel, keyChannel) && len(q.waiting) > 0 {
			d.nudge(q)
		}
	}
}

// onMessage handles a message of a node: "taken" and the token, or "free", the token and the number of
// subscribers. The claim tries the lock when the first node says that it is free, and again when a
// majority has said so.
func (d *redDriver) onMessage(channel, payload string) {
	part := strings.Split(payload, redisnode.Separator)
	if len(part) < 2 {
		return
	}
	token, isToken := d.token(part[1])
	d.mu.Lock()
	defer d.mu.Unlock()
	q := d.queueOf(channel)
	if q == nil || !isToken {
		return
	}
	q.waiting[0].unheard = 0 // queueOf returns no empty queue
	if part[0] == "taken" {
		if head := q.waiting[0]; token > max(q.freed, head.told.newest()) { // else a node reports late what has ended
			q.stopTimer()
			head.told = told{} // the turn of that release is over
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
