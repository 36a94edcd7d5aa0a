package dlock

import (
	"cmp"
	"fmt"
)

// progress is what an acquisition has met so far, for those who wait for it. It is
// kept under mu.
type progress struct {
	claim *claim
	asked bool  // an attempt to file it is under way
	err   error // of the last attempt, if it failed
}

// trouble is why the claim may not be waiting for a holder at all.
func (p *progress) trouble() error {
	switch {
	case p.claim == nil:
		return nil
	case p.claim.phase == queued:
		return p.claim.silence()
	case p.claim.phase != filing:
		return nil
	case p.asked || p.claim.unsettled:
		return fmt.Errorf("%w: %w", ErrUnknownOutcome, mayBeStored(cmp.Or(p.err, errNoAnswer)))
	}
	return p.err
}

// note records where an attempt stands, for those who wait for it.
func (a *acquisition) note(asked bool, err error) {
	if a.met == nil {
		return
	}
	a.client.mu.Lock()
	defer a.client.mu.Unlock()
	a.met.asked, a.met.err = asked, err
}

// silence is why nothing is known of a claim that was queued: its renewals are not
// answered, or one has yet to tell what became of a grant that came too late, or of a
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
