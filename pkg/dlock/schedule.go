package dlock

import (
	"fmt"
	"time"
)

// schedule is the one goroutine that serves all claims: it starts renewals, ends claims whose
// validity has passed, and delivers pushes. It makes no call to the backend itself, so nothing
// can keep it from noticing that a validity has passed.
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

// place puts a claim in the timeline, at the time when the next thing is due for it.
func (c *Client) place(cl *claim) {
	cl.wakeAt = never
	if !cl.renewing && !cl.parked {
		cl.wakeAt = cl.renewAt
	}
	switch cl.phase {
	case held:
		cl.wakeAt = min(cl.wakeAt, cl.valid, cl.holdEnd())
	case lingering: // its validity does not matter, because no caller holds it
		cl.wakeAt = min(cl.wakeAt, cl.holdEnd())
	case submitting, queued, granted, ended:
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

// holdEnd returns the end of the maximum hold or, for a lingering claim, of the minimum hold.
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

// tick does everything that is due, and returns the time until the next claim is due.
func (c *Client) tick() time.Duration {
	now, was := c.now(), c.alarm
	c.alarm = 0 // awake: place need not kick
	c.runDue(now)
	c.sendBatches()
	c.alarm = never
	if cl := c.timeline.first(); cl != nil {
		c.alarm = cl.wakeAt
	} else if was > now {
		// The claim of the alarm has ended, for instance after a short hold. To keep the
		// alarm costs one needless wakeup, which is less than a kick for each later claim.
		c.alarm = was
	}
	if c.alarm != never && c.slept != nil {
		c.alarm = min(c.alarm, after(c.lookedAt, time.Duration(sleepCheck)))
	}
	return time.Duration(min(c.alarm, after(now, time.Hour)) - now)
}

// runDue handles every due claim. When one renewal is due, renewals that are due soon join it,
// so that claims that were submitted at different times are renewed together.
func (c *Client) runDue(now int64) {
	batched := false
	for cl := c.timeline.first(); cl != nil; cl = c.timeline.first() {
		switch {
		case cl.wakeAt <= now:
			c.handle(cl, now)
			batched = batched || cl.parked
		case batched && cl.joins(now):
			c.enqueueRenewal(cl)
		default:
			return
		}
	}
}

// joins reports whether a claim may be renewed now, up to an eighth of its
// interval early.
func (cl *claim) joins(now int64) bool {
	return cl.wakeAt == cl.renewAt && !cl.renewing && !cl.parked && cl.wakeAt <= after(now, cl.interval()/8)
}

func (c *Client) handle(cl *claim, now int64) {
	switch {
	case cl.phase == held && cl.expired(now):
		c.lose(cl, lossExpired, notRenewed)
	case (cl.phase == held || cl.phase == lingering) && cl.holdEnd() <= now:
		c.endHold(cl)
	default:
		c.enqueueRenewal(cl)
	}
}

// endHold ends a maximum hold, which is a loss and leaves the holder the margin to stop, or a
// minimum hold, after which the claim is released.
func (c *Client) endHold(cl *claim) {
	if cl.phase == lingering {
		c.finish(cl, nil)
		c.cleanUp(cl)
		return
	}
	c.lose(cl, lossMaxHold, fmt.Sprintf("it was held for its longest time of %v", cl.extras.maxHold))
	if !c.caps.Lease {
		c.releaseLost(cl.guard)
		return
	}
	c.releaseAfter(cl.guard, cl.marginOf(cl.span))
}

// wakeUp subtracts time during which the machine was suspended, since the last check, from the
// validity of all claims.
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
