package redislock

import (
	"strconv"
	"strings"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// listenChannel returns the channel on which this process receives grants of lock, or "-" while it
// is not subscribed: scripts do not pass over such a waiter.
func (d *redisDriver) listenChannel(lock string) string {
	if !d.subscriptions.listening(d.slotOf(lock)) {
		return noChannel
	}
	return d.channelFor(lock)
}

const noChannel = "-"

// recheck asks the engine to renew every claim that waits in the given slots: a grant may have been
// published while there was no subscriber.
func (d *redisDriver) recheck(slots map[int]bool) {
	d.mu.Lock()
	var waiting []driver.Event
	for id, w := range d.waiting {
		if slots[w.slot] {
			waiting = append(waiting, driver.Event{Key: w.key, ID: id})
		}
	}
	d.mu.Unlock()
	for _, ev := range waiting {
		d.Send(ev)
	}
}

// heard forwards a push: phase, lock, id and token.
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
			break // not held yet: the renewal that follows waits for the replicas
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
