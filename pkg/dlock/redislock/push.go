package redislock

import (
	"context"
	"errors"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// A listener receives what scripts publish to this process: one subscription for
// all locks of a server, or, on a cluster, one for each slot in which something
// waits. It is opened before the first claim queues, and whatever may have been
// missed before it stood, or while it was broken, is asked for.
type listener struct {
	driver *redisDriver

	mu    sync.Mutex
	ears  map[int]*ear // by slot; 0 without a cluster
	ended bool
}

// An ear is one subscription.
type ear struct {
	slot    int
	channel string
	pubsub  *redis.PubSub
	tried   chan struct{} // closed once it stands, or has failed for the first time
	try     sync.Once
}

// channelFor is where the claims of this process on lock want to be told.
func (d *redisDriver) channelFor(lock string) string {
	if d.cluster == nil {
		return "dlock:" + d.me
	}
	return slotChannel(slotOf(lock), d.me)
}

// slotChannel is a channel that lives in a slot of a cluster.
func slotChannel(slot int, me string) string { return "{" + tagOf(slot) + "}dlock:" + me }

// tagOf finds a hash tag of a slot. It is searched for once.
func tagOf(slot int) string {
	if tag, ok := tags.Load(slot); ok {
		return tag.(string) //nolint:forcetypeassert // only strings are stored
	}
	for i := 0; ; i++ {
		if tag := strconv.FormatInt(int64(i), 36); slotOf(tag) == slot {
			tags.Store(slot, tag)
			return tag
		}
	}
}

var tags sync.Map // slot -> tag

// ready reports whether pushes for a slot are heard, or cannot be for now.
func (l *listener) ready(slot int) bool {
	l.mu.Lock()
	e := l.ears[slot]
	l.mu.Unlock()
	if e == nil {
		return false
	}
	select {
	case <-e.tried:
		return true
	default:
		return false
	}
}

// await opens the subscription of a slot and returns when it stands or could not
// be made; claims then queue without pushes.
func (l *listener) await(ctx context.Context, slot int) {
	e := l.want(slot)
	if e == nil {
		return
	}
	bound := time.NewTimer(busBound)
	defer bound.Stop()
	select {
	case <-e.tried:
	case <-ctx.Done():
	case <-l.driver.ctx.Done():
	case <-bound.C:
		e.settle()
	}
}

// want sees to it that pushes for a slot are heard. It returns nil when closed.
func (l *listener) want(slot int) *ear {
	d := l.driver
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended || l.ears[slot] != nil {
		return l.ears[slot]
	}
	e := &ear{slot: slot, channel: "dlock:" + d.me, tried: make(chan struct{})}
	if d.cluster != nil {
		e.channel = slotChannel(slot, d.me)
	}
	e.pubsub = l.open()
	if l.ears == nil {
		l.ears = map[int]*ear{}
	}
	l.ears[slot] = e
	d.work.Go(func() { l.listen(e) })
	return e
}

// settle lets those queue who waited for the subscription.
func (e *ear) settle() { e.try.Do(func() { close(e.tried) }) }

func (l *listener) open() *redis.PubSub {
	if c := l.driver.cluster; c != nil {
		return c.SSubscribe(l.driver.ctx)
	}
	return l.driver.client.Subscribe(l.driver.ctx)
}

// close ends all subscriptions; those who listen then return.
func (l *listener) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ended = true
	for _, e := range l.ears {
		_ = e.pubsub.Close()
	}
}

// quiet is how long a subscription may say nothing before it is asked whether it
// lives: a link that is half open would never tell.
const quiet = 5 * time.Second

// listen subscribes and passes on what comes, again and again. Only subscribe may
// open a connection: it has a bound, so that Close does not wait for a dead link.
func (l *listener) listen(e *ear) {
	d := l.driver
	pause, up, asked := 10*time.Millisecond, false, false
	for d.ctx.Err() == nil {
		if !up {
			if err := l.subscribe(e); err != nil {
				e.settle()
				d.log.Debug("subscribing failed", "error", err)
				if !d.sleep(pause) {
					return
				}
				pause = min(2*pause, time.Second)
				continue
			}
			up, asked = true, false
		}
		msg, err := e.pubsub.ReceiveTimeout(d.ctx, quiet)
		var late net.Error
		switch {
		case err == nil:
			pause, asked = 10*time.Millisecond, false
			up = l.take(e, msg)
		case errors.As(err, &late) && late.Timeout() && !asked:
			if l.forget(e) {
				return
			}
			asked = true
			_ = e.pubsub.Ping(d.ctx) // the answer, or its absence, will tell
		default:
			e.settle()
			d.log.Debug("subscription broken", "error", err)
			l.reopen(e)
			up = false
		}
	}
}

// take handles what a subscription brought, and reports whether it still stands.
func (l *listener) take(e *ear, msg any) bool {
	switch m := msg.(type) {
	case *redis.Subscription:
		if strings.HasSuffix(m.Kind, "unsubscribe") { // its slot has moved away
			l.reopen(e)
			return false
		}
		e.settle()
		l.driver.recheck(e.slot) // it stands, perhaps again
	case *redis.Message:
		l.driver.heard(m.Payload)
	}
	return true
}

// reopen replaces a subscription that is dead or in the wrong place.
func (l *listener) reopen(e *ear) {
	l.mu.Lock()
	defer l.mu.Unlock()
	_ = e.pubsub.Close()
	if !l.ended {
		e.pubsub = l.open()
	}
}

// forget ends a subscription of a cluster if nothing waits in its slot any more.
func (l *listener) forget(e *ear) bool {
	d := l.driver
	if d.cluster == nil {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, w := range d.waiting {
		if w.slot == e.slot {
			return false
		}
	}
	delete(l.ears, e.slot)
	_ = e.pubsub.Close()
	return true
}

func (l *listener) subscribe(e *ear) error {
	ctx, cancel := context.WithTimeout(l.driver.ctx, busBound)
	defer cancel()
	if l.driver.cluster != nil {
		return e.pubsub.SSubscribe(ctx, e.channel)
	}
	return e.pubsub.Subscribe(ctx, e.channel)
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

// recheck asks for everything of a slot that waits: a grant may have been
// published when nobody heard.
func (d *redisDriver) recheck(slot int) {
	d.mu.Lock()
	var waiting []driver.Event
	for id, w := range d.waiting {
		if d.cluster == nil || w.slot == slot {
			waiting = append(waiting, driver.Event{Key: w.key, ID: id})
		}
	}
	d.mu.Unlock()
	for _, ev := range waiting {
		d.Send(ev)
	}
}

// heard passes on a push: phase, lock, id and token.
func (d *redisDriver) heard(payload string) {
	part := strings.Split(payload, separator)
	if len(part) != 4 || !strings.HasPrefix(part[1], d.prefix) {
		return
	}
	ev := driver.Event{Key: part[1][len(d.prefix):], ID: part[2]}
	ev.State.Token, _ = strconv.ParseInt(part[3], 10, 64)
	switch part[0] {
	case "held":
		if d.settings.replicas > 0 {
			ev.State.Token = 0 // the renewal that follows waits for the replicas
			break
		}
		ev.State.Phase = driver.Held
		d.mu.Lock()
		delete(d.waiting, ev.ID)
		d.mu.Unlock()
	case "gone":
		ev.State.Phase = driver.Gone
	case "free":
		time.AfterFunc(d.settings.gap, func() { d.Send(ev) })
		return
	}
	d.Send(ev)
}
