package redislock

import (
	"context"
	"errors"
	"net"
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
	pause  backoff

	sending chan struct{} // has an element while a channel is asked for, or the connection closed

	// under subscriptions.mu
	pubsub      *redis.PubSub // nil until it is opened
	slots       map[int]*slotSubscription
	established bool          // the connection is made
	replaced    time.Time     // when it was last closed as misplaced
	stays       time.Duration // how long it is not closed as misplaced again
	sends       int
	misplaced   bool // it is to be replaced at once
	failing     bool // the last attempt has failed
}

// quiet is how long a connection may be silent before it is pinged: a half-open connection would
// never report its end. Slots without a waiter are cleaned up at the same interval.
const quiet = 5 * time.Second

// run keeps the connection open until no slot needs it.
func (c *subscription) run() {
	d := c.all.driver
	for d.ctx.Err() == nil {
		err := c.open()
		if err == nil {
			err = c.receive()
		}
		misplaced := c.broken()
		if d.ctx.Err() != nil || !c.needed() {
			return
		}
		if !misplaced && !d.sleep(c.pause.next(c.report(err))) {
			return
		}
		c.all.reload()
		c.relocate()
	}
}

// open subscribes to all slots. Only a subscribe command may establish the connection: it has a
// timeout, so that Close does not wait for a dead link.
func (c *subscription) open() error {
	l, d := c.all, c.all.driver
	client := c.client
	if d.cluster != nil && !d.honorsDeadline {
		client = client.WithTimeout(tripTimeout)
	}
	pubsub := client.Subscribe(d.ctx) // makes no connection yet
	l.mu.Lock()
	if l.ended {
		l.mu.Unlock()
		return errors.Join(redis.ErrClosed, pubsub.Close())
	}
	c.pubsub = pubsub
	l.mu.Unlock()
	sent := map[*slotSubscription]bool{}
	for todo := c.unsent(sent); len(todo) > 0; todo = c.unsent(sent) {
		for _, s := range todo {
			err := c.subscribe(s, pubsub)
			if err != nil {
				return err
			}
			sent[s] = true
		}
	}
	return nil
}

// unsent returns the slots that open has not subscribed yet. When there are none, the connection
// is established, and other goroutines subscribe the slots that are attached later. Until then
// they do not wait for it.
func (c *subscription) unsent(sent map[*slotSubscription]bool) (todo []*slotSubscription) {
	l := c.all
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range c.slots {
		if !sent[s] {
			todo = append(todo, s)
		}
	}
	c.established = len(todo) == 0
	return todo
}

// tell sends a command within the timeout of a round trip. If it fails, receive notices.
func (c *subscription) tell(command func(context.Context) error) {
	redisnode.Tell(c.pubsub, tripTimeout, command)
}

// receive forwards messages until the connection breaks or no slot needs it.
func (c *subscription) receive() error {
	asked, swept := false, time.Now()
	fresh := map[int]bool{} // slots that were confirmed, and are to be rechecked
	for {
		msg, err := c.pubsub.ReceiveTimeout(redisnode.NoReconnect(), quiet)
		var late net.Error
		switch {
		case err == nil:
			asked = false
			c.take(msg, fresh)
		case c.moved(err):
		case c.unserved(err):
		case errors.As(err, &late) && late.Timeout() && !asked:
			asked = true
			c.tell(func(ctx context.Context) error { return c.pubsub.Ping(ctx) }) // the answer, or its absence, says more
		default:
			return err
		}
		complete := len(fresh) > 0 && c.isComplete()
		if complete {
			c.pause = 0
		}
		if complete || len(fresh) >= maxFresh {
			c.all.driver.recheck(fresh)
			clear(fresh)
		}
		if time.Since(swept) >= quiet {
			swept = time.Now()
			if !c.sweep() {
				return nil
			}
		}
	}
}

// maxFresh is how many slots are rechecked together.
const maxFresh = 64

// take handles a message.
func (c *subscription) take(msg any, fresh map[int]bool) {
	d := c.all.driver
	switch m := msg.(type) {
	case *redis.Message:
		d.heard(m.Payload)
	case *redis.Subscription:
		if strings.HasSuffix(m.Kind, "unsubscribe") {
			c.replace(c.slotOf(m.Channel), "") // its slot has moved away
			break
		}
		slot := c.slotOf(m.Channel)
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
	s.release()
	return true
}

// isComplete reports whether all slots are confirmed.
func (c *subscription) isComplete() bool {
	l := c.all
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range c.slots {
		if !s.confirmed {
			return false
		}
	}
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
	slot, bad := strconv.Atoi(digits)
	if bad != nil {
		return false
	}
	c.replace(slot, addr)
	return true
}

// unserved handles the answer that a slot has no master or is being moved: the other slots keep the
// connection. The answer refers to the first channel that is not confirmed.
func (c *subscription) unserved(err error) bool {
	if !redis.IsClusterDownError(err) && !redis.IsTryAgainError(err) {
		return false
	}
	l := c.all
	l.mu.Lock()
	var first *slotSubscription
	for _, s := range c.slots {
		if !s.confirmed && s.sent > 0 && (first == nil || s.sent < first.sent) {
			first = s
		}
	}
	l.mu.Unlock()
	if first == nil {
		return false
	}
	first.release()
	c.replace(first.slot, "")
	return true
}

// broken closes the connection and records that none of its slots is subscribed. It reports whether
// the connection was at the wrong server.
func (c *subscription) broken() (misplaced bool) {
	l := c.all
	l.mu.Lock()
	pubsub := c.pubsub
	c.pubsub, c.established = nil, false
	for _, s := range c.slots {
		s.confirmed, s.sent = false, 0
		s.release()
	}
	misplaced, c.misplaced = c.misplaced, false
	c.failing = !misplaced
	l.mu.Unlock()
	c.close(pubsub)
	return misplaced
}

// needed reports whether a slot uses the connection. If not, the connection is forgotten.
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
		return maxBackoff
	}
	l.mu.Lock()
	known := l.warned[err.Error()]
	l.warned[err.Error()] = true
	l.mu.Unlock()
	if !known {
		d.log.Warn("redis refuses to subscribe, so waiters are served late", "server", c.addr, "error", err, "cure", d.subscribeCure())
	}
	return maxRefusedBackoff
}

func (d *redisDriver) subscribeCure() string {
	if d.cluster != nil {
		return "use Redis 7 or newer, and allow the user +ssubscribe +sunsubscribe +spublish and the channels &{*}dlock:*"
	}
	return "allow the user +subscribe +publish and the channels &dlock:*"
}
