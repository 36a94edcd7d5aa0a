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
		case <-c.wake:
		case <-timer.C:
		}
		c.mu.Lock()
		if now := c.now(); c.suspended != nil && now-c.suspendCheckedAt >= suspendCheckInterval {
			c.suspendCheckedAt = now
			c.checkSuspend()
		}
		next := c.tick()
		c.unlock()
		timer.Reset(next)
	}
}

// reschedule moves a claim in the timeline to the time at which something is next due for it.
func (c *Client) reschedule(cl *claim) {
	cl.wakeAt = never
	if !cl.renewing && !cl.renewPending {
		cl.wakeAt = cl.renewAt
	}
	switch cl.phase {
	case held:
		cl.wakeAt = min(cl.wakeAt, cl.validUntil, cl.holdEnd())
	case lingering: // its validity does not matter, because no caller holds it
		cl.wakeAt = min(cl.wakeAt, cl.holdEnd())
	case submitting, queued, granted, ended:
	}
	c.timeline.put(cl)
	if c.timeline.first() == cl && cl.wakeAt < c.timerAt {
		c.timerAt = cl.wakeAt
		c.wakeScheduler()
	}
}

func (c *Client) wakeScheduler() {
	select {
	case c.wake <- struct{}{}:
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
	now, was := c.now(), c.timerAt
	c.timerAt = 0 // awake: reschedule need not wake it
	c.runDue(now)
	c.sendBatches()
	c.timerAt = never
	if cl := c.timeline.first(); cl != nil {
		c.timerAt = cl.wakeAt
	} else if was > now {
		// The claim that the timer was set for has ended, for instance after a short hold. Keeping
		// the timer costs one needless wakeup, less than waking the scheduler for each later claim.
		c.timerAt = was
	}
	if c.timerAt != never && c.suspended != nil {
		c.timerAt = min(c.timerAt, after(c.suspendCheckedAt, time.Duration(suspendCheckInterval)))
	}
	return time.Duration(min(c.timerAt, after(now, time.Hour)) - now)
}

// runDue handles every due claim. When one renewal is due, renewals that are due soon join it,
// so that claims that were submitted at different times are renewed together.
func (c *Client) runDue(now int64) {
	batched := false
	for cl := c.timeline.first(); cl != nil; cl = c.timeline.first() {
		switch {
		case cl.wakeAt <= now:
			c.handleDue(cl, now)
			batched = batched || cl.renewPending
		case batched && cl.renewsEarly(now):
			c.enqueueRenewal(cl)
		default:
			return
		}
	}
}

// renewsEarly reports whether a claim that is not due yet may be renewed now: up to an
// eighth of its interval early.
func (cl *claim) renewsEarly(now int64) bool {
	return cl.wakeAt == cl.renewAt && !cl.renewing && !cl.renewPending && cl.wakeAt <= after(now, cl.interval(cl.phase >= held)/8)
}

func (c *Client) handleDue(cl *claim, now int64) {
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
	c.lose(cl, lossMaxHold, fmt.Sprintf("it reached its maximum hold of %v", cl.extras.maxHold))
	if !c.caps.Lease {
		c.releaseLost(cl.guard)
		return
	}
	c.releaseAfter(cl.guard, cl.marginOf(cl.lease))
}

// checkSuspend subtracts time during which the machine was suspended, since the last check, from
// the validity of all claims.
func (c *Client) checkSuspend() {
	total := c.suspended()
	if total-c.suspendedBefore <= suspendNoise {
		return
	}
	c.suspendedBefore = total
	for _, cl := range append(timeline(nil), c.timeline...) {
		if cl.validUntil != never && c.subtractSuspended(cl) {
			if !cl.isFixed() {
				cl.renewAt = c.now()
			}
			c.reschedule(cl)
		}
	}
}
