package redislock

import (
	"strconv"
	"strings"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// pushChannel returns the channel on which this process receives grants of lock, or noChannel while
// it is not subscribed.
func (d *redisDriver) pushChannel(lock string) string {
	if !d.subscriptions.isConfirmed(d.slotOf(lock)) {
		return noChannel
	}
	return d.channelFor(lock)
}

// noChannel is the channel of a process that is not subscribed. Scripts do not skip its waiters.
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

// handlePush forwards a push, which has the phase, lock, ID and token of a claim.
func (d *redisDriver) handlePush(payload string) {
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
		d.stopWaiting(ev.ID)
	case "gone":
		ev.State.Phase = driver.Gone
	case "free":
		time.AfterFunc(d.settings.gap, func() { d.Send(ev) })
		return
	}
	d.Send(ev)
}
