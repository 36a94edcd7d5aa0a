package dlock

import (
	"errors"
	"fmt"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// A phase is the state of a claim in this process. It only moves forward, with one
// exception: a granted claim whose caller did not accept it in time is queued again,
// and the next renewal decides.
type phase uint8

const (
	submitting phase = iota // no answer yet
	queued                  // the backend answered that it waits
	granted                 // the backend has granted the key; the caller has not accepted it yet
	held                    // a Guard holds it
	lingering               // unlocked, but its minimum hold has not passed
	ended
)

// A claim is one request for one key, as the backend stores it, from before it is
// submitted until it ends. There is exactly one for each stored claim. Calls to the backend
// belong to the claim, not to its owner. The owner is a Guard; a local handoff changes the
// owner and nothing else. A claim is small, because a Client may have 100,000 of them.
type claim struct {
	client *Client
	key    string
	id     string

	// Under client.mu.
	guard        *Guard // its owner; the only Guard that holds a held claim
	ttl          time.Duration
	lease        time.Duration // the lease that the last answered call set
	late         *lateCalls    // nil: every call was answered
	token        int64         // of the grant; each local handoff since then adds 1 for the owner
	validUntil   int64         // when ownership ends by the local clock; see suspended
	suspended    int64         // the suspended time that validUntil accounts for
	grantedAt    int64         // when it was granted
	renewAt      int64
	wakeAt       int64 // when the scheduler handles it: the earliest time that something is due
	heapIndex    int32 // its index in the timeline's heap, -1 if it is not there
	failures     int32 // backend errors in a row
	limit        int32 // of permits
	phase        phase
	mode         driver.Mode // as requested; never changes
	pushedGrant  bool        // the push of its grant came before the answer that sets its deadline
	pushedGone   bool        // a push of Gone came before the answer: a grant in that answer may have ended
	unanswered   bool        // an attempt to submit it was not answered
	noRenew      bool
	ownLease     bool
	hasWaited    bool     // the backend answered that it is queued
	verify       bool     // the next renewal only asks whether the claim is still held, and must not extend it
	renewing     bool     // a renewal is in flight
	renewAgain   bool     // renew again when the renewal in flight is answered, because its answer may be too old
	renewPending bool     // its renewal waits for the batch of its class that is in flight
	byKey        bool     // the registry indexes it by its key
	asyncUnlock  bool     // Unlock does not wait for the answer
	turnEnded    bool     // its turn in the handoff is over
	extras       *extras  // nil: defaults
	handoff      *handoff // nil unless the lock may be handed to another goroutine
	wait         *wait
}

// extras are settings that few claims have: an owner name for the log, a requested
// margin, and limits of the hold.
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

func (cl *claim) requestedMargin() time.Duration {
	if cl.extras == nil {
		return 0
	}
	return cl.extras.margin
}

// A wait is what a caller waits on while its claim is queued, or while Extend is in
// progress.
type wait struct {
	changed chan struct{} // buffered by one; signals a change
	since   int64         // only a renewal sent from then on answers an Extend
	err     error         // the last backend error
}

// errNoAnswer: the backend returned no state for a claim, and no error.
var errNoAnswer = errors.New("the backend gave no answer")

func (w *wait) signal() {
	select {
	case w.changed <- struct{}{}:
	default:
	}
}

// ref identifies the claim in a release.
func (cl *claim) ref() driver.Ref {
	return driver.Ref{Key: cl.key, ID: cl.id, TTL: cl.ttl, Unanswered: cl.unanswered}
}

// renewalRef identifies the claim in a renewal. A renewal that only verifies requests no
// more than the remaining time.
func (cl *claim) renewalRef(now int64) driver.Ref {
	r := cl.ref()
	if cl.verify && cl.validUntil != never {
		left := cl.remaining(now) + cl.marginOf(cl.lease)
		r.TTL = min(max(left, cl.client.caps.MinTTL, time.Millisecond), cl.ttl)
	}
	return r
}

// recordAnswer records the backend's answer for a claim, and reports whether the claim is
// still stored. The caller decides what Gone means.
func (c *Client) recordAnswer(cl *claim, st driver.State, s sent, now int64) bool {
	cl.failures = 0
	switch st.Phase {
	case driver.Held:
		if cl.phase >= held && st.Token != cl.token {
			return false // a later grant of the same claim: the one that we hold has ended
		}
		c.setValidity(cl, st, s)
		if cl.phase < held {
			c.grant(cl, st.Token, now)
		}
		if cl.phase == granted && cl.renewAgain && !cl.renewing { // the answer may be older than an event that came before it
			c.verifyNow(cl)
		}
	case driver.Queued:
		if cl.phase >= granted && s.at > cl.grantedAt {
			return false // the call was sent after the grant: the lock has been taken away
		}
		c.setValidity(cl, st, s)
		c.recordQueued(cl, st, s, now)
	case driver.Gone:
		return false
	case driver.Unknown:
		return true
	}
	c.reschedule(cl)
	return true
}

// recordQueued records the answer that a claim is queued, or was when the call was answered.
func (c *Client) recordQueued(cl *claim, st driver.State, s sent, now int64) {
	if cl.phase == submitting {
		cl.phase, cl.hasWaited = queued, true
	}
	if cl.pushedGrant && cl.phase == queued {
		c.grant(cl, cl.token, now)
	}
	if cl.phase == queued && s.at > cl.grantedAt {
		cl.grantedAt = 0 // the answer is newer than the push of the grant: the claim waits
	}
	if cl.renewAgain && !cl.renewing {
		cl.renewAgain, cl.renewAt = false, now
	}
	if soon := after(s.at, max(st.Recheck, time.Millisecond)); st.Recheck > 0 && cl.phase == queued && soon < cl.renewAt {
		cl.renewAt = soon
	}
}

// grant records that the backend granted the key to a claim. A grant whose validity has
// passed or is too short, or that may have been taken away again, is not delivered to the
// caller: a renewal is sent at once, and its answer decides.
func (c *Client) grant(cl *claim, token, now int64) {
	uncertain := cl.pushedGone
	cl.token, cl.pushedGrant, cl.pushedGone, cl.grantedAt = token, false, false, now
	if uncertain || cl.tooShort() || cl.validUntil <= now { // accept also checks the suspended time
		c.requeue(cl)
		return
	}
	cl.phase = granted
	if cl.noRenew && cl.renewAt != never {
		cl.renewAt = now // one renewal, which extends the rest of the heartbeat to the TTL
	}
	if cl.wait != nil {
		cl.wait.signal()
	}
}

// requeue makes a granted claim wait again, until a renewal decides. That one is for its whole lease.
func (c *Client) requeue(cl *claim) {
	cl.phase, cl.verify = queued, false
	c.renewNow(cl)
}

// tooShort reports whether a requested margin leaves so little of a waiter's lease that the validity
// could end before the next renewal is answered.
func (cl *claim) tooShort() bool {
	return cl.requestedMargin() > 0 && cl.lease < cl.ttl && cl.renewAt != never && after(cl.renewAt, cl.renewTimeout()) > cl.validUntil
}

// accept makes the Guard of a granted claim hold it, unless its validity has passed or the key
// has been granted to another claim since.
func (c *Client) accept(cl *claim, now int64) bool {
	if cl.expired(now) || !c.admit(cl) {
		c.requeue(cl)
		return false
	}
	cl.phase, cl.wait = held, nil
	if r := c.cfg.RenewInterval; r > 0 && !cl.noRenew { // the answer was recorded before it was held
		cl.renewAt = min(cl.renewAt, after(now, r))
	}
	cl.guard.begin(cl.token, now)
	c.reschedule(cl)
	return true
}

// finish ends a claim and removes it from the registry. cause is nil if it was released.
// unlock ends the context of its Guard.
func (c *Client) finish(cl *claim, cause error) {
	c.end(cl, cause)
	c.claims.remove(cl)
}

// end ends a claim but keeps it in the registry, so that a late push for it is not
// treated as the push of an unknown claim.
func (c *Client) end(cl *claim, cause error) {
	if cl.phase == held || cl.phase == lingering {
		cl.guard.end(cause)
		c.claims.endHold(cl)
	}
	cl.phase = ended
	c.timeline.remove(cl)
	if cause != nil { // after a release, its answer ends the turn
		cl.endTurn()
	}
	if cl.wait != nil {
		cl.wait.signal()
	}
}

// lose finishes a held claim whose ownership ended without Unlock or Close.
func (c *Client) lose(cl *claim, reason, why string) {
	c.finish(cl, &Error{Op: "hold", Key: cl.key, Err: fmt.Errorf("%w: %s", ErrOwnershipLost, why)})
	c.losses++
	now := c.now()
	c.ignored.add(cl.id, after(now, cl.ttl), now) // the holder has the rest of the lease to stop
	c.releaseAfter(cl.guard, max(cl.ttl, cl.lease))
	c.reportLoss(cl.guard, reason, why)
}
