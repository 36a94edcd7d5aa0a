package redislock

import (
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/internal/redisnode"
)

// A subscription is the connection to one master, and the goroutine that reads it.
type subscription struct {
	all    *subscriptions
	addr   string
	client *redis.Client
	pause  redisnode.Backoff

	// under subscriptions.mu
	connection  *redisnode.Subscription // nil while there is none
	slots       map[int]*slotSubscription
	replaced    time.Time     // when it was last replaced because it was at the wrong server
	keepFor     time.Duration // how long after that it is not replaced again
	wrongServer bool          // the connection must be replaced at once
	failing     bool          // the last attempt has failed
}

// sweepPause is how long a slot stays subscribed without a waiter, and how often that is checked.
const sweepPause = redisnode.Quiet

// run keeps the connection open until no slot needs it.
func (c *subscription) run() {
	d := c.all.driver
	for d.ctx.Err() == nil {
		connection, err := c.open()
		if err == nil {
			err = c.receive(connection)
		}
		wrongServer := c.broken()
		if d.ctx.Err() != nil || !c.needed() {
			return
		}
		if !wrongServer && !d.sleep(c.pause.Next(c.report(err))) {
			return
		}
		c.all.reload()
		c.relocate()
	}
}

// open subscribes to all slots.
func (c *subscription) open() (*redisnode.Subscription, error) {
	d := c.all.driver
	client := c.client
	if d.cluster != nil && !d.honorsDeadline {
		client = client.WithTimeout(tripTimeout)
	}
	connection := redisnode.NewSubscription(d.ctx, client, d.cluster != nil, tripTimeout)
	if !c.use(connection) {
		connection.Close()
		return nil, redis.ErrClosed
	}
	return connection, connection.Open()
}

// use assigns all slots to a connection, unless the driver is closed.
func (c *subscription) use(connection *redisnode.Subscription) bool {
	l := c.all
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended {
		return false
	}
	c.connection = connection
	for _, s := range c.slots {
		connection.Want(s.channel)
	}
	return true
}

// receive forwards messages until the connection breaks or no slot needs it.
func (c *subscription) receive(connection *redisnode.Subscription) error {
	swept := time.Now()
	var since time.Time // when it was first complete
	defer func() { c.pause.Lasted(since) }()
	fresh := map[int]bool{} // slots that were confirmed and must be rechecked
	for {
		msg, err := connection.Receive()
		switch {
		case err == nil:
			c.handleMessage(connection, msg, fresh)
		case c.moved(err):
		case c.unserved(connection, err):
		default:
			return err
		}
		complete := len(fresh) > 0 && connection.IsComplete()
		if complete && since.IsZero() {
			since = time.Now()
		}
		if complete || len(fresh) >= maxFresh {
			c.all.driver.recheck(fresh)
			clear(fresh)
		}
		if time.Since(swept) >= sweepPause {
			swept = time.Now()
			if !c.sweep(connection) {
				return nil
			}
		}
	}
}

// maxFresh is how many slots are rechecked together.
const maxFresh = 64

// handleMessage handles a message; msg is nil if there is none.
func (c *subscription) handleMessage(connection *redisnode.Subscription, msg any, fresh map[int]bool) {
	d := c.all.driver
	switch m := msg.(type) {
	case *redis.Message:
		d.handlePush(m.Payload)
	case *redis.Subscription:
		if strings.HasSuffix(m.Kind, "unsubscribe") {
			c.replace(c.slotOf(m.Channel), "") // its slot has moved to another master
			break
		}
		slot := c.slotOf(m.Channel)
		connection.Confirm(m.Channel)
		if c.confirm(slot) {
			fresh[slot] = true
		}
	}
}

// confirm records that the channel of a slot is subscribed.
func (c *subscription) confirm(slot int) bool {
	l := c.all
	l.mu.Lock()
	defer l.mu.Unlock()
	c.failing = false
	s := c.slots[slot]
	if s == nil {
		return false
	}
	s.confirmed, s.pause = true, 0
	s.unblock()
	return true
}

// slotOf returns the slot of a channel of this driver.
func (c *subscription) slotOf(channel string) int {
	if c.all.driver.cluster == nil {
		return 0
	}
	return slotOf(channel)
}

// moved handles the answer that another master has a slot. The answer names both.
func (c *subscription) moved(err error) bool {
	addr, ok := redis.IsMovedError(err)
	if !ok {
		return false
	}
	_, rest, _ := strings.Cut(err.Error(), "MOVED ")
	digits, _, _ := strings.Cut(rest, " ")
	slot, parseErr := strconv.Atoi(digits)
	if parseErr != nil {
		return false
	}
	c.replace(slot, addr)
	return true
}

// unserved handles the answer that a slot has no master or is being moved: the other slots keep the
// connection. The answer refers to the first channel that is not confirmed.
func (c *subscription) unserved(connection *redisnode.Subscription, err error) bool {
	if !redis.IsClusterDownError(err) && !redis.IsTryAgainError(err) {
		return false
	}
	channel, ok := connection.FirstUnconfirmed()
	if !ok {
		return false
	}
	connection.Drop(channel)
	slot := c.slotOf(channel)
	c.unblock(slot)
	c.replace(slot, "")
	return true
}

// unblock lets the claims of a slot be queued although it is not subscribed.
func (c *subscription) unblock(slot int) {
	l := c.all
	l.mu.Lock()
	defer l.mu.Unlock()
	if s := c.slots[slot]; s != nil {
		s.unblock()
	}
}

// broken closes the connection and records that none of its slots is subscribed. It reports whether
// the connection was at the wrong server.
func (c *subscription) broken() (wrongServer bool) {
	l := c.all
	l.mu.Lock()
	connection := c.connection
	c.connection = nil
	for _, s := range c.slots {
		s.confirmed = false
		s.unblock()
	}
	wrongServer, c.wrongServer = c.wrongServer, false
	c.failing = !wrongServer
	l.mu.Unlock()
	if connection != nil {
		connection.Close()
	}
	return wrongServer
}

// needed reports whether a slot uses the connection. If not, it removes the connection from the
// table.
func (c *subscription) needed() bool {
	l := c.all
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(c.slots) > 0 && !l.ended {
		return true
	}
	if l.conns[c.addr] == c {
		delete(l.conns, c.addr)
	}
	return false
}

// report logs why a connection broke and returns the longest pause before the next attempt. A
// refusal is logged once per cause, because it lasts until an operator changes something.
func (c *subscription) report(err error) time.Duration {
	l, d := c.all, c.all.driver
	var answer redis.Error
	if !errors.As(err, &answer) || driver.ClassOf(redisnode.Classify(err)) != driver.Fatal {
		d.log.Debug("subscription broken", "server", c.addr, "error", err)
		return redisnode.MaxBackoff
	}
	l.mu.Lock()
	known := l.warned[err.Error()]
	l.warned[err.Error()] = true
	l.mu.Unlock()
	if !known {
		d.log.Warn("redis refuses to subscribe, so waiters are served late", "server", c.addr, "error", err, "cure", d.subscribeFix())
	}
	return maxRefusedBackoff
}

func (d *redisDriver) subscribeFix() string {
	if d.cluster != nil {
		return "use Redis 7 or newer, and allow the user +ssubscribe +sunsubscribe +spublish and the channels &{*}dlock:*"
	}
	return "allow the user +subscribe +publish and the channels &dlock:*"
}
