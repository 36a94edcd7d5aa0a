package dlock

import (
	"errors"
	"fmt"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// A phase is where a claim stands in this process. It never goes backwards,
// but for granted: a grant that was not picked up in time is queued again, and
// the next renewal decides.
type phase uint8

const (
	filing    phase = iota // no answer yet
	queued                 // the backend says that it waits
	granted                // the backend has given the key; its caller has not yet taken it
	held                   // a Guard has it
	lingering              // unlocked, but inside its minimum hold
	ended
)

// A claim is one wish for one key, as the backend stores it, from before it is
// filed until it is over. There is exactly one for each stored claim: whatever
// call of it is still under way belongs to it, whoever owns it by then. Its owner
// is a Guard; a local handoff changes the owner and nothing else. It is kept
// small: 100,000 of them are a normal day.
type claim struct {
	client *Client
	key    string
	id     string

	// Under client.mu.
	guard     *Guard // its owner; of a held claim the only Guard that holds anything
	ttl       time.Duration
	span      time.Duration // the lease that the last answered call gave
	late      *lateCalls    // nil: every call was answered
	token     int64         // of the grant; that of the owner is greater by the handoffs since
	valid     int64         // the local end of ownership, should it be held now; as of slept
	slept     int64         // suspended time that valid has taken into account
	granted   int64         // when it was granted
	renewAt   int64
	wakeAt    int64 // when the scheduler looks at it: the first of all that is due
	slot      int32 // its place in the timeline, -1 if none
	failures  int32 // backend errors in a row
	limit     int32 // of permits
	phase     phase
	mode      driver.Mode // as asked for, and never changed
	pushed    bool        // a grant arrived before the answer that tells its deadline
	doubted   bool        // so did a push that it is gone: a grant by that answer may be over
	unsettled bool        // some attempt to file it was never answered
	noRenew   bool
	verify    bool     // its next renewal is to find out whether it is still ours, not to lengthen it
	flying    bool     // a renewal of it is under way
	again     bool     // and does not count: renew once more when it has landed
	parked    bool     // its renewal waits for another of its class
	byKey     bool     // the registry finds it by its key
	extras    *extras  // nil: as usual
	handoff   *handoff // nil unless the lock may be handed to another goroutine
	wait      *wait
}

// extras are what few claims have: an owner of their own for the log, a margin as asked
// for, bounds of the hold.
type extras struct {
	owner                    string
	margin, minHold, maxHold time.Duration
}

func (cl *claim) owner() string {
	if cl.extras == nil {
		return cl.client.info.Owner
	}
	return cl.extras.owner
}

func (cl *claim) askedMargin() time.Duration {
	if cl.extras == nil {
		return 0
	}
	return cl.extras.margin
}

// lateCalls are calls that were not answered and may yet arrive: the least TTL of
// them, and when none can arrive any more.
type lateCalls struct {
	shortest time.Duration
	until    int64
}

// A wait is what a caller waits on while its claim is queued, or while it is
// extended.
type wait struct {
	changed chan struct{} // buffered by one; something is new
	since   int64         // an Extend is answered by what was sent from then on
	err     error         // the last backend error
}

// errNoAnswer: the backend said nothing of a claim, and nothing of why.
var errNoAnswer = errors.New("the backend gave no answer")

func (w *wait) signal() {
	select {
	case w.changed <- struct{}{}:
	default:
	}
}

// ref names the claim for a release.
func (cl *claim) ref() driver.Ref {
	return driver.Ref{Key: cl.key, ID: cl.id, TTL: cl.ttl, Unsettled: cl.unsettled}
}

// renewalRef names the claim for a renewal. One that only verifies asks for no more
// than is left.
func (cl *claim) renewalRef(now int64) driver.Ref {
	r := cl.ref()
	if cl.verify && cl.valid != never {
		left := cl.remaining(now) + cl.marginOf(cl.span)
		r.TTL = min(max(left, cl.client.caps.MinTTL, time.Millisecond), cl.ttl)
	}
	return r
}

// certain is how much of a lease can be counted on: a call with a shorter TTL
// that was never answered may arrive late and cut the deadline. After as long as
// an ID stays barred, it is taken for lost.
func (cl *claim) certain(lease time.Duration) time.Duration {
	if cl.late == nil {
		return lease
	}
	if cl.client.now() > cl.late.until {
		cl.late = nil
		return lease
	}
	return min(lease, cl.late.shortest)
}

// mayArrive records a call that was not answered. The deadline that it will have
// set, if it arrives, counts from its sending at the earliest.
func (c *Client) mayArrive(cl *claim, s sent) {
	if cl.late == nil {
		cl.late = &lateCalls{shortest: s.ttl}
	}
	cl.late.shortest = min(cl.late.shortest, s.ttl)
	cl.late.until = max(cl.late.until, after(c.now(), driver.BarFor(s.ttl)))
	if cl.valid == never {
		return
	}
	c.countSleep(cl)
	cl.valid = min(cl.valid, after(s.at, s.ttl-cl.marginOf(s.ttl))-c.sleptSince(s.slept))
}

func (cl *claim) marginOf(lease time.Duration) time.Duration {
	return max(lease/20, 2*time.Millisecond, cl.askedMargin())
}

// interval is how long after a call was sent the next renewal is due. It goes
// by the lease that the claim really has: a waiter that was just granted the
// key has the rest of a heartbeat, and a longer TTL that was asked for counts
// when the backend has agreed.
func (cl *claim) interval() time.Duration {
	i := cl.certain(cl.span) / 3
	if r := cl.client.cfg.RenewInterval; r > 0 && cl.phase >= held {
		i = min(i, r)
	}
	return i
}

// patience is how long one attempt to renew may take: a quarter of the lease,
// so that one which hangs leaves time for two more; and of the TTL that is asked
// for if that is shorter, so that we give up before it could run out.
func (cl *claim) patience() time.Duration { return cl.certain(min(cl.span, cl.ttl)) / 4 }

// A sent call is when a call left, by both clocks, and with which TTL.
type sent struct {
	at, slept int64
	ttl       time.Duration
}

func (c *Client) sending(ttl time.Duration) sent {
	return sent{at: c.now(), slept: c.sleptSoFar(), ttl: ttl}
}

// answered takes in what the backend said of a claim, and reports whether the
// claim is still there. The caller judges what Gone means.
func (c *Client) answered(cl *claim, st driver.State, s sent, now int64) bool {
	cl.failures = 0
	switch st.Phase {
	case driver.Held:
		if cl.phase >= held && st.Token != cl.token {
			return false // a later grant than ours: ours is over
		}
		c.moveDeadline(cl, st, s)
		if cl.phase < held {
			c.grant(cl, st.Token, now)
		}
	case driver.Queued:
		if cl.phase >= granted && s.at > cl.granted {
			return false // asked after it was ours: it has been taken away
		}
		c.moveDeadline(cl, st, s)
		c.standInLine(cl, st, s, now)
	case driver.Gone:
		return false
	case driver.Unknown:
		return true
	}
	c.place(cl)
	return true
}

// standInLine is for a claim that waits, or waited when the call was answered.
func (c *Client) standInLine(cl *claim, st driver.State, s sent, now int64) {
	if cl.phase == filing {
		cl.phase = queued
	}
	if cl.pushed && cl.phase == queued {
		c.grant(cl, cl.token, now)
	}
	if cl.phase == queued && s.at > cl.granted {
		cl.granted = 0 // whatever was said of a grant, it waits
	}
	if cl.again && !cl.flying {
		cl.again, cl.renewAt = false, now
	}
	if soon := after(s.at, max(st.Recheck, time.Millisecond)); st.Recheck > 0 && cl.phase == queued && soon < cl.renewAt {
		cl.renewAt = soon
	}
}

// moveDeadline counts the claim's validity anew from a call that was answered.
// Only such a call moves a deadline, so a grant that is pushed later finds the
// right one here. What the machine slept while the call was under way counts
// against it at once: the scheduler looks only for what is slept from now on.
func (c *Client) moveDeadline(cl *claim, st driver.State, s sent) {
	slept := c.sleptSince(s.slept)
	if cl.verify && st.Phase == driver.Held && s.ttl < cl.ttl {
		c.verified(cl, st, s)
		return
	}
	cl.span = s.ttl
	if st.Phase == driver.Queued {
		cl.span = driver.Heartbeat(s.ttl)
	}
	cl.renewAt = after(s.at, cl.interval())
	if !st.Until.IsZero() { // a lease that the claim has joined may be older than the call
		cl.renewAt = min(cl.renewAt, max(s.at, c.at(st.Until)-int64(cl.span-cl.interval())))
	}
	if st.Phase == driver.Held && cl.noRenew && s.ttl == cl.ttl {
		cl.renewAt = never
	} else if slept > 0 {
		cl.renewAt = c.now()
	}
	until := c.at(st.Until)
	switch {
	case st.Until.IsZero() && c.caps.Lease: // which is not said, but follows
		until = after(s.at, cl.span)
	case st.Until.IsZero():
		cl.valid = never
		return
	}
	certain := cl.certain(cl.span)
	valid := until - int64(cl.span-certain) - int64(cl.marginOf(certain)) - slept
	if st.Phase == driver.Queued && cl.phase >= granted { // answered before the grant that has overtaken it
		c.countSleep(cl)
		valid = max(valid, cl.valid)
	}
	cl.valid, cl.slept = valid, s.slept+slept
}

// verified is for a claim that is still ours and is not to last longer for that.
func (c *Client) verified(cl *claim, st driver.State, s sent) {
	cl.verify, cl.renewAt = false, never
	if st.Until.IsZero() || cl.valid == never {
		return
	}
	c.countSleep(cl)
	cl.valid = min(cl.valid, c.at(st.Until)-int64(cl.marginOf(s.ttl))-c.sleptSince(s.slept))
}

// expired reports whether ownership is over by the local clocks.
func (cl *claim) expired(now int64) bool { return cl.remaining(now) <= 0 }

func (cl *claim) remaining(now int64) time.Duration {
	if cl.valid == never {
		return time.Duration(never)
	}
	return time.Duration(cl.valid - now - cl.client.sleptSince(cl.slept))
}

// grant records that the backend gave the key to a claim that nobody has taken
// yet. A grant whose validity has passed, or that may have been taken away again, is not
// delivered: the renewal that is due now decides.
func (c *Client) grant(cl *claim, token, now int64) {
	doubted := cl.doubted
	cl.token, cl.pushed, cl.doubted, cl.granted = token, false, false, now
	if doubted || cl.valid <= now { // take looks at the other clock too
		cl.phase = queued
		c.renewNow(cl)
		return
	}
	cl.phase = granted
	if cl.noRenew && cl.renewAt != never {
		cl.renewAt = now // what is left of a heartbeat becomes the TTL, once
	}
	if cl.wait != nil {
		cl.wait.signal()
	}
}

// take gives a granted claim to its Guard, unless its validity has passed or the key was
// granted anew since.
func (c *Client) take(cl *claim, now int64) bool {
	if cl.expired(now) || !c.admit(cl) {
		cl.phase = queued
		c.renewNow(cl)
		return false
	}
	cl.phase, cl.wait = held, nil
	cl.guard.begin(cl.token, now)
	c.place(cl)
	return true
}

// finish ends a claim and forgets it. cause is nil if it was released. Its Guard's
// context ends in unlock.
func (c *Client) finish(cl *claim, cause error) {
	c.end(cl, cause)
	c.claims.remove(cl)
}

// end takes a claim out of the engine. It is still known by its ID: a push for it is
// not one for a stranger.
func (c *Client) end(cl *claim, cause error) {
	if cl.phase == held || cl.phase == lingering {
		cl.guard.end(cause)
		c.claims.leaveHold(cl)
	}
	cl.phase = ended
	c.timeline.remove(cl)
	if cl.handoff != nil && cause != nil { // after a release the next claim is filed when it was answered
		cl.handoff.turnEnded()
	}
	if cl.wait != nil {
		cl.wait.signal()
	}
}

// lose finishes a held claim whose ownership ended by itself.
func (c *Client) lose(cl *claim, reason, why string) {
	c.finish(cl, &Error{Op: "hold", Key: cl.key, Err: fmt.Errorf("%w: %s", ErrOwnershipLost, why)})
	c.strays.ignore(cl.id, after(c.now(), cl.ttl), c.now()) // its holder has the rest of the lease to stop
	c.reportLoss(cl.guard, reason, why)
}

// unlock frees mu, and then does what must not be done under it. The contexts of
// guards that are over end first; only then does the next local holder have the lock, or
// clean-up learn of their claims.
// What there is to report goes to the reporter, which nothing here waits for.
func (c *Client) unlock() {
	c.reporter.add(c.unlockReporting())
}

// unlockCall is unlock for a call of the user's, which delivers its reports itself
// when it is done.
func (c *Client) unlockCall() {
	c.reporter.put(c.unlockReporting())
}

func (c *Client) unlockReporting() []report {
	endings, handovers, reports, cleanups := c.endings, c.handovers, c.reports, c.cleanups
	c.endings, c.handovers, c.reports, c.cleanups = nil, nil, nil, nil
	c.settling.handedOver += len(cleanups)
	settlers := c.hireSettlers()
	c.mu.Unlock()
	for _, e := range endings {
		e.cancel(e.cause)
	}
	for _, h := range handovers {
		h.to.got <- h.handed
	}
	if len(cleanups) > 0 {
		c.mu.Lock()
		c.settling.add(cleanups)
		settlers += c.hireSettlers()
		c.settling.signalIdle()
		c.mu.Unlock()
	}
	for range settlers {
		c.workers.Go(c.settleSome)
	}
	return reports
}
