package dlock

import (
	"cmp"
	"fmt"
)

// progress is the state of an acquisition that local waiters depend on. It is guarded
// by mu.
type progress struct {
	claim          *claim
	sending        bool  // an attempt to submit it is in progress
	err            error // of the last attempt, if it failed
	earlierUnknown bool  // the outcome of an earlier claim is unknown: it may be stored
	wasQueued      bool  // the claim was answered, and was queued or held
}

// pendingError returns an error if it is unknown whether the claim waits for a holder.
func (p *progress) pendingError() error {
	switch {
	case p.claim == nil:
		return nil
	case p.claim.phase == queued:
		return p.claim.queuedError()
	case p.claim.phase == ended && p.earlierUnknown && !p.wasQueued: // between two claims
	case p.claim.phase == ended && !p.wasQueued:
		return p.err // its acquisition has just failed, or it begins again
	case p.claim.phase != submitting:
		return nil
	case p.sending || p.claim.unanswered || p.earlierUnknown:
	default:
		return p.err
	}
	return fmt.Errorf("%w: %w", ErrUnknownOutcome, mayBeStored(cmp.Or(p.err, errNoAnswer)))
}

// publishAttempt tells local waiters that an attempt is in progress, or has ended with err.
func (a *acquisition) publishAttempt(sending bool, err error) {
	if a.progress == nil {
		return
	}
	a.client.mu.Lock()
	defer a.client.mu.Unlock()
	a.progress.sending, a.progress.err = sending, err
}

// publishAnswer tells local waiters that the claim was answered.
func (a *acquisition) publishAnswer() {
	if a.progress == nil {
		return
	}
	a.client.mu.Lock()
	defer a.client.mu.Unlock()
	a.progress.earlierUnknown, a.progress.wasQueued = a.earlierUnknown, a.queued
}

// queuedError returns an error if the state of a queued claim is unknown: its renewals are not
// answered, or no renewal has yet confirmed a grant that came too late, or a place in the
// queue that may be lost.
func (cl *claim) queuedError() error {
	switch {
	case cl.failures > 0 && cl.wait != nil:
	case cl.phase == queued && cl.grantedAt != 0:
		return fmt.Errorf("%w: it was granted, and its renewal has not been answered yet", ErrUnknownOutcome)
	case cl.phase == queued && cl.placeExpired(cl.client.now()):
		return fmt.Errorf("%w: queued, and not renewed for longer than a heartbeat", ErrUnknownOutcome)
	default:
		return nil
	}
	return fmt.Errorf("%w: queued, but %d renewals in a row were not answered: %w", ErrUnknownOutcome, cl.failures, mayBeStored(cl.wait.err))
}
