package redislock

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/internal/redisnode"
)

// The end of a connection ends the subscriptions on it, and lets the claims that wait for the first attempt be queued.
// Only a connection that was at the wrong server is replaced at once.
func TestBrokenConnection(t *testing.T) {
	for _, wrong := range []bool{false, true} {
		d, _ := openScripted(t, nil)
		c := subscribedAt(t, d, 0)
		s := c.slots[0]
		s.attempted, s.unblockOnce = make(chan struct{}), sync.Once{}
		c.wrongServer = wrong
		if got := c.broken(); got != wrong || c.wrongServer || c.failing == wrong || c.connection != nil {
			t.Errorf("at the wrong server: %v, and then %v; failing %v", got, c.wrongServer, c.failing)
		}
		if d.subscriptions.isConfirmed(0) || !d.subscriptions.ready(0) {
			t.Error("its slot is subscribed, or a claim waits for it")
		}
		if c.broken() {
			t.Error("there was no connection")
		}
	}
}

// A confirmation makes the slot subscribed, whatever failed before; that of a slot that has left the connection does not count.
func TestConfirmedSlot(t *testing.T) {
	d, _ := openScripted(t, nil)
	c := subscribedAt(t, d, 0)
	s := c.slots[0]
	s.confirmed, s.pause, c.failing = false, redisnode.Backoff(time.Second), true
	if c.confirm(1) || c.failing {
		t.Error("another slot is confirmed, or the connection still counts as failing")
	}
	if !c.confirm(0) || !s.confirmed || s.pause != 0 {
		t.Errorf("confirmed %v, pause %v", s.confirmed, s.pause)
	}
}

// A connection without slots leaves the table, unless another one has taken its place.
func TestConnectionWithoutSlots(t *testing.T) {
	d, _ := openScripted(t, nil)
	l, c := &d.subscriptions, subscribedAt(t, d, 0)
	if !c.needed() || l.conns[""] != c {
		t.Error("a connection with a slot is not needed")
	}
	delete(c.slots, 0)
	other := &subscription{all: l}
	l.conns[""] = other
	if c.needed() || l.conns[""] != other {
		t.Error("it is needed, or has removed another")
	}
	l.conns[""] = c
	if c.needed() || len(l.conns) != 0 {
		t.Error("it is needed, or still in the table")
	}
	c.slots[0] = l.slots[0]
	l.ended = true
	if c.needed() {
		t.Error("needed after Close")
	}
}

// After Close there are no new subscriptions, and a master that is found late gets no connection.
func TestSubscribingAfterClose(t *testing.T) {
	d, _ := openScripted(t, nil)
	l := &d.subscriptions
	client, _ := d.client.(*redis.Client)
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	if s := l.ensure(0); s != nil || len(l.slots) != 0 {
		t.Error("subscribed")
	}
	l.await(t.Context(), 0) // returns
	s := &slotSubscription{attempted: make(chan struct{})}
	l.slots = map[int]*slotSubscription{0: s}
	if l.attach(s, client) != nil || len(l.conns) != 0 {
		t.Error("connected")
	}
	if c := (&subscription{all: l, client: client, slots: map[int]*slotSubscription{0: s}}); c.use(redisnode.NewSubscription(d.ctx, client, false, time.Second)) || c.connection != nil {
		t.Error("a connection is used")
	}
}

// A slot joins the connection of its master. If that is failing, its claims need not wait for it.
func TestSlotJoinsAConnection(t *testing.T) {
	for _, failing := range []bool{false, true} {
		d, _ := openScripted(t, nil)
		l, c := &d.subscriptions, subscribedAt(t, d, 0)
		client, _ := d.client.(*redis.Client)
		s := &slotSubscription{slot: 1, channel: "other", confirmed: true, attempted: make(chan struct{})}
		if l.attach(s, client) != nil || s.conn != nil {
			t.Error("a slot that is not in the table has a connection")
		}
		l.slots[1] = s
		c.failing = failing
		_ = l.attach(s, client)
		if s.conn != c || c.slots[1] != s || s.confirmed || !c.connection.IsWanted("other") || l.ready(1) != failing {
			t.Errorf("failing %v: it is ready: %v; %+v", failing, l.ready(1), s)
		}
		c.connection = nil
		if l.attach(s, client) != nil {
			t.Error("a connection that is not open is to be asked")
		}
	}
}

// Claims wait for the first attempt to subscribe no longer than a round trip may take, and no longer than their call.
func TestWaitForTheSubscription(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, _ := openScripted(t, nil)
		l := &d.subscriptions
		l.slots = map[int]*slotSubscription{0: {attempted: make(chan struct{})}}
		began := time.Now()
		l.await(t.Context(), 0)
		if took := time.Since(began); took != tripTimeout || !l.ready(0) {
			t.Errorf("after %v it is ready: %v", took, l.ready(0))
		}
		l.await(t.Context(), 0)
		if took := time.Since(began); took != tripTimeout {
			t.Errorf("the next claim waits as well, until %v", took)
		}
	})
}

// Claims of these slots are renewed, and no others.
func TestRecheckOfSlots(t *testing.T) {
	d := &redisDriver{EventQueue: driver.NewEventQueue(4), waiting: map[string]waiter{"a": {key: "k", slot: 1}, "b": {key: "l", slot: 2}}}
	d.recheck(map[int]bool{1: true, 3: true})
	if got := eventsNow(d); len(got) != 1 || got[0] != (driver.Event{Key: "k", ID: "a"}) {
		t.Errorf("%+v", got)
	}
	if slots := d.waitingSlots(); len(slots) != 2 || !slots[1] || !slots[2] {
		t.Errorf("claims wait in the slots %v", slots)
	}
}

// Only a subscription that the server has confirmed, and that may be replaced, is suspected.
func TestSuspectedSubscription(t *testing.T) {
	for _, tc := range []struct {
		name               string
		confirmed, earlier bool
		want               bool
	}{{"confirmed", true, false, true}, {"not confirmed", false, false, false}, {"just replaced", true, true, false}} {
		d, _ := openScripted(t, nil)
		c := subscribedAt(t, d, 0)
		c.slots[0].confirmed = tc.confirmed
		if tc.earlier {
			c.keepFor, c.replaced = time.Hour, time.Now()
		}
		d.subscriptions.reportUnsubscribed(1) // of a slot without a subscription
		d.subscriptions.reportUnsubscribed(0)
		if c.wrongServer != tc.want {
			t.Errorf("%s: suspected: %v", tc.name, c.wrongServer)
		}
	}
}
