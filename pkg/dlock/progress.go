package dlock

import (
	"cmp"
	"fmt"
)

// progress is what an acquisition has met so far, for those that wait for it. It is
// kept under mu.
type progress struct {
	claim *claim
	asked bool  // an attempt to submit it is under way
	err   error // of the last attempt, if it failed
	doubt bool  // an earlier claim may be stored: no answer has said what became of it
	known bool  // the claim was answered, and had its place
}

// trouble is why the claim may not be waiting for a holder at all.
func (p *progress) trouble() error {
	switch {
	case p.claim == nil:
		return nil
	case p.claim.phase == queued:
		return p.claim.silence()
	case p.claim.phase == ended && p.doubt && !p.known: // between two claims
	case p.claim.phase != submitting:
		return nil
	case p.asked || p.claim.unanswered || p.doubt:
	default:
		return p.err
	}
	return fmt.Errorf("%w: %w", ErrUnknownOutcome, mayBeStored(cmp.Or(p.err, errNoAnswer)))
}

// recordAttempt is for those that wait for the claim: an attempt is under way, or has ended.
func (a *acquisition) recordAttempt(asked bool, err error) {
	if a.met == nil {
		return
	}
	a.client.mu.Lock()
	defer a.client.mu.Unlock()
	a.met.asked, a.met.err = asked, err
}

// recordAnswer is for those that wait for the claim: what its answer says of it and of those before.
func (a *acquisition) recordAnswer() {
	if a.met == nil {
		return
	}
	a.client.mu.Lock()
	defer a.client.mu.Unlock()
	a.met.doubt, a.met.known = a.doubt, a.queued
}

// silence is why nothing is known of a claim that was queued: its renewals are not
// answered, or one has yet to report what became of a grant that came too late, or of a
// place that may be lost.
func (cl *claim) silence() error {
	switch {
	case cl.failures > 0 && cl.wait != nil:
	case cl.phase == queued && cl.granted != 0:
		return fmt.Errorf("%w: it was granted, and the answer took longer than the lease", ErrUnknownOutcome)
	case cl.phase == queued && cl.expired(cl.client.now()):
		return fmt.Errorf("%w: queued, and not renewed for longer than its place lasts", ErrUnknownOutcome)
	default:
		return nil
	}
	return fmt.Errorf("%w: queued, but %d renewals in a row were not answered: %w", ErrUnknownOutcome, cl.failures, mayBeStored(cl.wait.err))
}
