package dlock

import (
	"context"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// An attempt is a call that submits a claim.
type attempt struct {
	guard  *Guard
	caller context.Context // of the call that makes it, if the acquisition is for several; nil otherwise
	made   bool
	left   bool // that call ended before the attempt did
	sent   sent
	err    error
	answer answer // if there is no error
}

// An answer says what an attempt has led to.
type answer uint8

const (
	refused    answer = iota // the claim is not stored
	stored                   // it is, and has not been granted to this call
	accepted                 // this call has the lock
	whenClosed               // the Client was closed before
)

// ask makes an attempt of an acquisition that lasts as long as ctx.
func (a *acquisition) ask(ctx context.Context, at *attempt) {
	sendCtx := ctx //nolint:contextcheck // the caller may leave before the acquisition ends
	if at.caller != nil {
		sendCtx = at.caller
	}
	cctx, timeout, cancel := a.callContext(sendCtx)
	defer cancel()
	if a.progress != nil {
		a.publishAttempt(true, a.progress.err)
	}
	at.sent = a.beginSend()
	st, err := a.client.store.Acquire(cctx, a.request(at.guard.claim))
	if err == nil && st.Phase == driver.Unknown {
		err = errNoAnswer
	}
	at.made = true
	if err == nil {
		at.err = nil
		a.publishAttempt(false, nil)
		at.answer = a.handleAnswer(at.guard, st, at.sent)
		at.left = at.answer == refused && a.callerLeft(at)
		return
	}
	if at.caller != nil && driver.ClassOf(err) != driver.Fatal {
		at.left = a.callerLeft(at)
		timeout = min(timeout, time.Duration(a.client.now()-at.sent.at).Round(time.Millisecond))
	}
	at.err = a.sendError(ctx, cctx, timeout, err)
	a.handleError(at.guard.claim, at.sent, at.err, driver.ClassOf(at.err))
}

// callerLeft reports whether the call that made an attempt for several has ended.
func (a *acquisition) callerLeft(at *attempt) bool {
	return at.caller != nil && (contextEnded(at.caller) || a.client.now() >= a.deadline)
}

// beginSend returns what is known of a call that is about to be sent.
func (a *acquisition) beginSend() sent {
	call := sent{at: a.started, suspended: a.client.suspendedTotal(), ttl: a.settings.ttl}
	a.answers = a.client.answers.Load()
	a.sends++
	if a.sends > 1 {
		call.at = a.client.now()
	}
	return call
}

func (a *acquisition) request(cl *claim) driver.Request {
	s := &a.settings
	return driver.Request{
		Ref:  driver.Ref{Key: cl.key, ID: cl.id, TTL: s.ttl},
		Mode: s.mode, Limit: s.limit, Wait: s.waits(), Fixed: s.noRenew, OwnLease: s.ownLease, Tokens: s.tokens, Info: s.info,
	}
}

// sendError returns the error of a call that was made with cctx, a child of ctx with a timeout.
func (a *acquisition) sendError(ctx, cctx context.Context, timeout time.Duration, err error) error {
	ended := err != nil && contextEnded(ctx) // the driver may notice the deadline before ctx does
	switch {
	case err == nil, ended:
		return err
	case !contextEnded(cctx):
		a.keepCause(err)
	case a.client.closing.Err() != nil && driver.ClassOf(err) == driver.Ambiguous:
		err = ErrClosed
	default:
		err = a.timeoutError(err, timeout)
	}
	return hideContextErrors(err)
}

// applyAnswer accepts the grant if the claim was granted.
func (a *acquisition) applyAnswer(g *Guard, st driver.State, s sent) answer {
	c, cl := a.client, g.claim
	c.mu.Lock()
	defer c.unlockCall()
	now := c.now()
	isStored := c.recordAnswer(cl, st, s, now)
	switch {
	case c.closed:
		return whenClosed
	case cl.phase == granted && c.accept(cl, now):
		return accepted
	case isStored:
		cl.wait = &wait{changed: make(chan struct{}, 1)}
		return stored
	}
	return refused
}

// handleAnswer records the answer to an attempt. Gone after an unanswered attempt does not reset
// failures: for an ID that must not be reused, a driver returns Gone without a call to the backend.
func (a *acquisition) handleAnswer(g *Guard, st driver.State, s sent) answer {
	a.client.answers.Add(1)
	a.queued = st.Phase != driver.Gone
	if a.queued || !g.claim.unanswered {
		a.failures = 0
	} else {
		a.earlierUnknown = true
	}
	a.publishAnswer()
	return a.applyAnswer(g, st, s)
}

// handleError records a failed attempt. If its request may still arrive, the release of the claim
// leaves a tombstone, and a push may report a grant that has already ended.
func (a *acquisition) handleError(cl *claim, s sent, err error, class driver.Class) {
	a.publishAttempt(false, err)
	if class != driver.Ambiguous {
		return
	}
	a.client.mu.Lock()
	defer a.client.mu.Unlock()
	cl.unanswered, cl.pushedGrant = true, false
	a.client.recordUnanswered(cl, s)
}
