package dlock

import (
	"fmt"
	"time"
)

// schedule is the one goroutine that keeps all claims: it starts renewals,
// ends what has run out, and delivers what the backend pushes. It makes no call
// to the backend itself, so nothing can keep it from noticing that a validity
// has passed.
func (c *Client) schedule() {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	events := c.store.Events()
	for {
		select {
		case <-c.stop:
			return
		case ev, ok := <-events:
			if !ok {
				events = nil
				continue
			}
			c.dispatch(ev)
		case <-c.kick:
		case <-timer.C:
		}
		c.mu.Lock()
		if now := c.now(); c.slept != nil && now-c.lookedAt >= sleepCheck {
			c.lookedAt = now
			c.wakeUp()
		}
		next := c.tick()
		c.unlock()
		timer.Reset(next)
	}
}

// place puts a claim where the scheduler will look at it in time.
func (c *Client) place(cl *claim) {
	cl.wakeAt = never
	if !cl.flying && !cl.parked {
		cl.wakeAt = cl.renewAt
	}
	switch cl.phase {
	case held:
		cl.wakeAt = min(cl.wakeAt, cl.valid, cl.holdEnd())
	case lingering: // nobody relies on its validity
		cl.wakeAt = min(cl.wakeAt, cl.holdEnd())
	case filing, queued, granted, ended:
	}
	c.timeline.put(cl)
	if c.timeline.first() == cl && cl.wakeAt < c.alarm {
		c.alarm = cl.wakeAt
		c.kickScheduler()
	}
}

func (c *Client) kickScheduler() {
	select {
	case c.kick <- struct{}{}:
	default:
	}
}

// holdEnd is when the longest hold is over, or the least one of a claim that is
// unlocked.
func (cl *claim) holdEnd() int64 {
	switch x := cl.extras; {
	case x == nil:
		return never
	case cl.phase == lingering:
		return after(cl.guard.since, x.minHold)
	case x.maxHold > 0:
		return after(cl.guard.since, x.maxHold)
	}
	return never
}

// tick does everything that is due, and returns the time until the next.
func (c *Client) tick() time.Duration {
	now, was := c.now(), c.alarm
	c.alarm = 0 // awake: place need not kick
	c.runDue(now)
	c.launchAll()
	c.alarm = never
	if cl := c.timeline.first(); cl != nil {
		c.alarm = cl.wakeAt
	} else if was > now {
		// What it was set for is over already, as a short hold is when we wake. To wake
		// once in vain costs less than a kick for each of those that follow.
		c.alarm = was
	}
	if c.alarm != never && c.slept != nil {
		c.alarm = min(c.alarm, after(c.lookedAt, time.Duration(sleepCheck)))
	}
	return time.Duration(min(c.alarm, after(now, time.Hour)) - now)
}

// runDue handles every claim whose time has come. Once a renewal is due, others
// that will be soon join it, so that claims which were filed one after the other
// come to be renewed together.
func (c *Client) runDue(now int64) {
	boarded := false
	for cl := c.timeline.first(); cl != nil; cl = c.timeline.first() {
		switch {
		case cl.wakeAt <= now:
			c.handle(cl, now)
			boarded = boarded || cl.parked
		case boarded && cl.joins(now):
			c.board(cl)
		default:
			return
		}
	}
}

// joins reports whether a claim may be renewed now, up to an eighth of its
// interval early.
func (cl *claim) joins(now int64) bool {
	return cl.wakeAt == cl.renewAt && !cl.flying && !cl.parked && cl.wakeAt <= after(now, cl.interval()/8)
}

func (c *Client) handle(cl *claim, now int64) {
	switch {
	case cl.phase == held && cl.expired(now):
		c.lose(cl, lossExpired, notRenewed)
	case (cl.phase == held || cl.phase == lingering) && cl.holdEnd() <= now:
		c.endHold(cl)
	default:
		c.board(cl)
	}
}

// endHold is the end of a longest hold, which is a loss and leaves the holder the margin
// to stop, or of a least hold, which is the release.
func (c *Client) endHold(cl *claim) {
	if cl.phase == lingering {
		c.finish(cl, nil)
		c.settle(cl)
		return
	}
	c.lose(cl, lossMaxHold, fmt.Sprintf("it was held for its longest time of %v", cl.extras.maxHold))
	if !c.caps.Lease {
		c.settle(cl)
		return
	}
	g := cl.guard
	if c.overdue == nil {
		c.overdue = map[*Guard]*time.Timer{}
	}
	c.overdue[g] = time.AfterFunc(cl.marginOf(cl.span), func() {
		c.mu.Lock()
		defer c.unlock()
		c.sweepLost(g)
	})
}

// wakeUp looks whether the machine was suspended since it last looked: the time
// slept counts against every validity reckoned until then.
func (c *Client) wakeUp() {
	slept := c.slept()
	if slept-c.sleptBefore <= suspendNoise {
		return
	}
	c.sleptBefore = slept
	for _, cl := range append(timeline(nil), c.timeline...) {
		if cl.valid != never && c.countSleep(cl) {
			if cl.renewable() {
				cl.renewAt = c.now()
			}
			c.place(cl)
		}
	}
}
