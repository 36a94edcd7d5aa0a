package dlock

import (
	"cmp"
	"context"
	"fmt"
	"math/bits"
	"slices"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/internal/unanswered"
)

// A renewalBatch renews all due claims of one class. Claims are of one class if their leases,
// and so the timeouts of an attempt, are within a factor of two. This limits the number of
// batches for any number of TTLs, and no claim waits for the timeout of a much longer one. At
// most one batch of a class is in flight; claims that become due meanwhile are pending.
type renewalBatch struct {
	inFlight bool
	pending  []*claim
	failures int
}

func renewalClass(cl *claim) int { return bits.Len64(uint64(cl.renewTimeout())) }

// enqueueRenewal puts a claim into the next batch of its class.
func (c *Client) enqueueRenewal(cl *claim) {
	f := &c.renewals[renewalClass(cl)]
	f.pending = append(f.pending, cl)
	cl.renewPending = true
	c.reschedule(cl)
}

// renewNow makes a claim due at once. A renewal in flight is followed by another, because its answer may
// be older than the event that caused this call.
func (c *Client) renewNow(cl *claim) {
	cl.renewAt, cl.renewAgain = c.now(), cl.renewing
	c.reschedule(cl)
}

func (c *Client) sendBatches() {
	if c.closed {
		return
	}
	for i := range c.renewals {
		if f := &c.renewals[i]; !f.inFlight && len(f.pending) > 0 {
			c.sendBatch(f)
		}
	}
}

// moreUrgent compares claims: those that hold a lock come first, because a place in a queue is lost more easily, and of those the ones
// with the least time.
func moreUrgent(a, b *claim) int {
	switch holds := a.phase >= granted; {
	case holds == (b.phase >= granted):
		return cmp.Compare(a.validUntil, b.validUntil)
	case holds:
		return -1
	}
	return 1
}

// sendBatch sends the renewal of every pending claim that has not ended.
func (c *Client) sendBatch(f *renewalBatch) {
	batch := make([]*claim, 0, len(f.pending))
	refs := make([]driver.Ref, 0, len(f.pending))
	timeout := maxTTL
	now := c.now()
	if f.failures > 0 { // perhaps the backend cannot answer for all of them in time
		slices.SortFunc(f.pending, moreUrgent)
	}
	for _, cl := range f.pending {
		cl.renewPending = false
		if cl.phase == ended {
			continue
		}
		cl.renewing, cl.renewAgain = true, false
		batch = append(batch, cl)
		ref := cl.renewalRef(now)
		refs = append(refs, ref)
		timeout = min(timeout, cl.renewTimeout())
		c.shortenValidity(cl, ref.TTL, now)
		c.reschedule(cl)
	}
	clear(f.pending)
	f.pending = f.pending[:0]
	if len(batch) == 0 {
		return
	}
	f.inFlight = true
	c.workers.Go(func() { c.renewBatch(f, batch, refs, timeout) })
}

func (c *Client) renewBatch(f *renewalBatch, batch []*claim, refs []driver.Ref, timeout time.Duration) {
	ctx, cancel := context.WithTimeout(c.closing, timeout)
	s := c.sentNow(0)
	states, err := c.renewSafely(ctx, refs)
	if err != nil && ctx.Err() != nil && c.closing.Err() == nil && driver.ClassOf(err) == driver.Ambiguous && !unanswered.HasSeveral(err) {
		err = fmt.Errorf("no answer within %v", timeout) // our timeout, not the caller's
	}
	cancel()
	c.batchAnswered(f, batch, refs, states, err, s)
}

// renewSafely is Renew. If a hook of the backend's client panics, no caller could recover it.
func (c *Client) renewSafely(ctx context.Context, refs []driver.Ref) (states []driver.State, err error) {
	defer recoverHook(&err)
	return c.store.Renew(ctx, refs)
}

// batchAnswered records the answers to a batch. It ignores answers for claims that have ended.
func (c *Client) batchAnswered(f *renewalBatch, batch []*claim, refs []driver.Ref, states []driver.State, err error, s sent) {
	c.mu.Lock()
	defer c.unlock()
	f.inFlight = false
	failed, now := 0, c.now()
	defer c.wakeScheduler()
	for i, cl := range batch {
		cl.renewing = false
		if cl.phase == ended {
			continue
		}
		st := driver.State{}
		if i < len(states) {
			st = states[i]
		}
		if c.meters != nil && cl.phase >= held && cl.validUntil != never {
			c.measure(measurement{of: measuredSlack, value: cl.remaining(now)})
		}
		s.ttl = refs[i].TTL
		if st.Phase == driver.Unknown {
			failed++
			c.renewFailed(cl, f, err, s)
			continue
		}
		slack, measured := cl.slack(now, s.ttl)
		c.renewed(cl, st, s, now)
		if measured && cl.phase != ended {
			c.health.confirmed(now, cl.key, slack)
		}
		if cl.renewAgain && cl.phase != ended {
			c.verifyNow(cl)
		}
	}
	c.health.batch(now, len(batch)-failed, failed, err)
	c.measure(measurement{of: measuredRenewals, n: len(batch) - failed, label: resultOK})
	c.measure(measurement{of: measuredRenewals, n: failed, label: resultFailed})
	if failed == 0 {
		f.failures = 0
	} else {
		f.failures++
		c.logRenewFailed(failed, len(batch), err)
	}
}

// slack returns the share of the lease that is left of a held lock that the engine renews. A
// renewal with a shorter lease has shortened the validity.
func (cl *claim) slack(now int64, ttl time.Duration) (share float64, ok bool) {
	if cl.phase != held || cl.noRenew || cl.validUntil == never {
		return 0, false
	}
	return float64(cl.remaining(now)) / float64(min(cl.lease, ttl)), true
}

// shortenValidity shortens the validity before a renewal with a shorter lease is sent: from now on
// the backend may have the shorter lease, even if the machine is suspended during the attempt.
func (c *Client) shortenValidity(cl *claim, ttl time.Duration, now int64) {
	if cl.validUntil == never || ttl >= cl.lease {
		return
	}
	c.subtractSuspended(cl)
	cl.validUntil = min(cl.validUntil, after(now, ttl-cl.marginOf(ttl)))
}

// renewed applies a definite answer.
func (c *Client) renewed(cl *claim, st driver.State, s sent, now int64) {
	cl.pushedGone = false // the renewal was sent after the push
	stored := c.recordAnswer(cl, st, s, now)
	switch {
	case stored:
		if cl.wait != nil && cl.phase >= held && s.ttl == cl.ttl && s.at >= cl.wait.since {
			cl.wait.signal() // an Extend waits for this
			cl.wait = nil
		}
	case cl.phase == held:
		c.lose(cl, lossTaken, "the backend answered that this claim does not hold it")
	case cl.phase == lingering:
		c.cutMinHold(cl)
	default:
		c.finish(cl, nil) // the place in the queue is lost
		if st.Phase == driver.Queued {
			c.cleanUp(cl) // it was queued again, and its caller does not know that place
		}
	}
}

// renewFailed records a failed renewal. It is not a loss: the renewal is retried until the
// validity ends.
func (c *Client) renewFailed(cl *claim, f *renewalBatch, err error, s sent) {
	c.recordUnanswered(cl, s)
	cl.failures++
	if cl.wait != nil {
		cl.wait.err = hideContextErrors(cmp.Or(err, errNoAnswer))
		cl.wait.signal()
	}
	pause := c.pause(cl.id, f.failures)
	left := cl.remaining(c.now())
	if cl.phase < granted && cl.validUntil != never {
		left = cl.placeRemaining(c.now())
	}
	switch {
	case cl.validUntil == never:
	case left > 0 || cl.phase == held:
		// Pauses become shorter near the end of the validity, or of the place in the
		// queue.
		pause = min(pause, max(left/4, 5*time.Millisecond))
	default:
		pause = min(pause, cl.interval(cl.phase >= held)) // a backend may keep the place for as long as we ask in time
	}
	cl.renewAt = max(c.now(), after(s.at, pause)) // the pause includes the time of the attempt
	c.reschedule(cl)
}
