package redislock

import (
	"context"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ceyewan/genesis/pkg/dlock/internal/redisnode"
)

// subscriptions receives the messages that scripts publish to this process. Without a cluster there
// is one channel. On a cluster there is a channel for each slot in which a claim waits. The
// channels of one master share a connection, which is opened directly at that master: a message
// also reaches subscribers at its replicas, but scripts cannot count them. A channel is subscribed
// before the first claim of its slot is queued. Claims whose messages may have been missed before
// that, or while a connection was broken, are rechecked.
type subscriptions struct {
	driver *redisDriver

	mu     sync.Mutex
	slots  map[int]*slotSubscription // 0 without a cluster
	conns  map[string]*subscription  // by the address of the master, "" without a cluster
	warned map[string]bool           // the errors of refusals that were logged
	ended  bool                      // after close
}

// A slotSubscription is the subscription of one channel. subscriptions.mu guards its fields, except
// those that do not change.
type slotSubscription struct {
	slot        int
	channel     string
	conn        *subscription     // nil while its master is looked up
	confirmed   bool              // the server has confirmed the subscription
	used        time.Time         // when a claim last needed it, on a cluster
	pause       redisnode.Backoff // before it is looked up again
	attempted   chan struct{}     // closed when the first attempt to subscribe has succeeded or failed
	unblockOnce sync.Once
}

// unblock lets the claims that wait for the first attempt be queued.
func (s *slotSubscription) unblock() { s.unblockOnce.Do(func() { close(s.attempted) }) }

// channelFor returns the channel on which the claims of this process on lock receive pushes.
func (d *redisDriver) channelFor(lock string) string {
	if d.cluster == nil {
		return "dlock:" + d.name
	}
	return slotChannel(slotOf(lock), d.name)
}

// ready reports whether the first attempt to subscribe to a slot has ended, with any result.
func (l *subscriptions) ready(slot int) bool {
	l.mu.Lock()
	s := l.slots[slot]
	if s != nil && l.driver.cluster != nil {
		s.used = time.Now()
	}
	l.mu.Unlock()
	if s == nil {
		return false
	}
	select {
	case <-s.attempted:
		return true
	default:
		return false
	}
}

// isConfirmed reports whether the server has confirmed the subscription of a slot and its
// connection is up.
func (l *subscriptions) isConfirmed(slot int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.slots[slot]
	return s != nil && s.confirmed
}

// await subscribes to a slot. It returns when the subscription is confirmed or has failed; claims
// are then queued without pushes.
func (l *subscriptions) await(ctx context.Context, slot int) {
	s := l.ensure(slot)
	if s == nil {
		return
	}
	timer := time.NewTimer(tripTimeout)
	defer timer.Stop()
	select {
	case <-s.attempted:
	case <-ctx.Done():
	case <-l.driver.ctx.Done():
	case <-timer.C:
		s.unblock()
	}
}

// ensure makes sure that the channel of a slot is subscribed. It returns nil after close.
func (l *subscriptions) ensure(slot int) *slotSubscription {
	d := l.driver
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.slots[slot]
	if l.ended || s != nil {
		if s != nil {
			s.used = time.Now()
		}
		return s
	}
	s = &slotSubscription{slot: slot, channel: "dlock:" + d.name, used: time.Now(), attempted: make(chan struct{})}
	if d.cluster != nil {
		s.channel = slotChannel(slot, d.name)
	}
	if l.slots == nil {
		l.slots, l.conns, l.warned = map[int]*slotSubscription{}, map[string]*subscription{}, map[string]bool{}
	}
	l.slots[slot] = s
	d.work.Go(func() { l.subscribe(s, "") })
	return s
}

// minReplacePause is the shortest time before a connection whose subscription no script counts is
// replaced again. It doubles up to maxRefusedBackoff while replacing does not help: while a slot
// moves, scripts may count at one master, and the subscription may be at the other.
const minReplacePause = time.Second

// reportUnsubscribed handles the report that a master counts no subscriber for the channel of a
// slot. If the channel is subscribed, the subscription is at a server that is no longer its master:
// the connection is replaced, and the waiting claims are rechecked.
func (l *subscriptions) reportUnsubscribed(slot int) {
	l.mu.Lock()
	s := l.slots[slot]
	if s == nil || !s.confirmed || !s.conn.replaceable() {
		l.mu.Unlock()
		return
	}
	s.conn.wrongServer = true
	connection := s.conn.connection
	l.mu.Unlock()
	connection.Close()
}

// reportSubscribed handles the report that a master counts the subscriber: the connection is at the
// right server.
func (l *subscriptions) reportSubscribed(slot int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.slots[slot]
	if s != nil && s.conn != nil {
		s.conn.keepFor = 0
	}
}

// replaceable reports whether the connection may be replaced now, and records the replacement.
func (c *subscription) replaceable() bool {
	since := time.Since(c.replaced)
	if since < c.keepFor {
		return false
	}
	if since > 4*c.keepFor {
		c.keepFor = 0
	}
	c.replaced, c.keepFor = time.Now(), min(max(2*c.keepFor, minReplacePause), maxRefusedBackoff)
	return true
}

// close ends all connections; their goroutines then return.
func (l *subscriptions) close() {
	l.mu.Lock()
	l.ended = true
	var open []*redisnode.Subscription
	for _, c := range l.conns {
		if c.connection != nil {
			open = append(open, c.connection)
		}
	}
	l.mu.Unlock()
	for _, connection := range open { // without mu, because Close may wait
		connection.Close()
	}
}

// subscribe finds the master of a slot and subscribes there. addr names the master if another
// server has redirected to it.
func (l *subscriptions) subscribe(s *slotSubscription, addr string) {
	for {
		client, err := l.masterOf(s, addr)
		if err == nil {
			connection := l.attach(s, client)
			if connection != nil {
				connection.Request(s.channel)
			}
			return
		}
		s.unblock()
		l.driver.log.Debug("no master to subscribe at", "slot", s.slot, "error", err)
		if !l.driver.sleep(l.pauseOf(s)) {
			return
		}
		addr = ""
	}
}

func (l *subscriptions) pauseOf(s *slotSubscription) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return s.pause.Next(redisnode.MaxBackoff)
}

// masterOf returns the client of the master of a slot.
func (l *subscriptions) masterOf(s *slotSubscription, addr string) (*redis.Client, error) {
	d := l.driver
	if d.cluster == nil {
		client, _ := d.client.(*redis.Client) // Open accepts no other client
		return client, nil
	}
	ctx, cancel := context.WithTimeout(d.ctx, tripTimeout)
	defer cancel()
	if addr != "" {
		client := d.masterAt(ctx, addr)
		if client != nil {
			return client, nil
		}
	}
	return d.masterFor(ctx, s.channel)
}

// addrOf returns the address of a master, or "" without a cluster.
func (l *subscriptions) addrOf(client *redis.Client) string {
	if l.driver.cluster == nil {
		return ""
	}
	return client.Options().Addr
}

// attach assigns a slot to the connection of a master, and creates the connection if there is none.
// It returns the connection if the caller has to request the channel there.
func (l *subscriptions) attach(s *slotSubscription, client *redis.Client) *redisnode.Subscription {
	addr := l.addrOf(client)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended || l.slots[s.slot] != s {
		return nil
	}
	c := l.conns[addr]
	if c == nil {
		c = &subscription{all: l, addr: addr, client: client, slots: map[int]*slotSubscription{}}
		l.conns[addr] = c
		l.driver.work.Go(c.run)
	}
	s.conn, s.confirmed = c, false
	c.slots[s.slot] = s
	if c.failing {
		s.unblock()
	}
	if c.connection == nil || !c.connection.Want(s.channel) {
		return nil
	}
	return c.connection
}

func (d *redisDriver) sleep(t time.Duration) bool {
	timer := time.NewTimer(t)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-d.ctx.Done():
		return false
	}
}

// maxRefusedBackoff is the longest pause before the next attempt to subscribe after a refusal.
const maxRefusedBackoff = 30 * time.Second
