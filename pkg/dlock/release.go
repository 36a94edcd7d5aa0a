package dlock

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// releaseBound is the longest that a release is tried before the caller is let
// go and clean-up takes over.
func releaseBound(ttl time.Duration) time.Duration { return min(ttl/3, 2*time.Second) }

// release ends the ownership of a Guard and takes its claim from the backend. The
// Guard's context ends before anything is sent. A release does not wait for a
// renewal under way, whose late answer is dropped. The user's logger, meter and
// tracer run when all is done, or before anything is.
func (c *Client) release(ctx context.Context, g *Guard) error {
	if c.unobserved() {
		_, err := c.releaseHeld(ctx, g)
		return err
	}
	traced, span := c.traceRelease(ctx, g)
	released, err := c.releaseHeld(traced, g)
	if released {
		c.measureRelease(traced, err)
		if err == nil {
			c.logReleased(g)
		}
	}
	safely(func() { endSpan(span, err) })
	c.reporter.deliver()
	return err
}

// releaseHeld also reports whether g held the lock until then.
func (c *Client) releaseHeld(ctx context.Context, g *Guard) (bool, error) {
	end, err := c.endHeld(g)
	if end != sendRelease {
		return end != notHeld, err
	}
	defer c.leave()
	err = c.sendRelease(ctx, g.claim)
	c.released(g, err)
	return true, err
}

// released forgets a claim whose release was answered or left to clean-up. It records
// how the hold of its Guard has ended, and lets the next local waiter file a claim: that
// finds the key free, or waits for others.
func (c *Client) released(g *Guard, err error) {
	c.mu.Lock()
	defer c.unlockCall()
	c.claims.remove(g.claim)
	lost := errors.Is(err, ErrOwnershipLost)
	if !lost {
		err = nil
	}
	c.measureHold(g, err)
	if lost {
		c.reportLoss(g, lossTaken, "the backend did not know it any more when it was unlocked")
	}
	if g.claim.handoff != nil {
		g.claim.handoff.turnEnded()
	}
}

// An unlocking is what is left to do when a Guard was unlocked here.
type unlocking uint8

const (
	notHeld     unlocking = iota // nothing: it was over
	done                         // nothing: it was handed on, or lingers
	sendRelease                  // the claim is to be released now, and the caller must leave
)

// endHeld ends a Guard locally.
func (c *Client) endHeld(g *Guard) (unlocking, error) {
	cl := g.claim
	c.mu.Lock()
	defer c.unlockCall()
	now := c.now()
	if g.holds() && cl.expired(now) {
		c.lose(cl, lossUnlocked, "it was unlocked after its lease")
	}
	if h := c.keyed[cl.key]; h != nil && h.guard == g {
		delete(c.keyed, cl.key)
	}
	if !g.holds() {
		return notHeld, c.endedError(g)
	}
	if x := cl.extras; x != nil && now < after(g.since, x.minHold) {
		cl.phase, cl.verify = lingering, false
		if cl.noRenew { // the key is kept for the least hold, not for the holder
			cl.noRenew, cl.renewAt = false, now
		}
		g.endContext(nil)
		c.place(cl)
		return done, nil
	}
	if cl.handoff != nil && cl.handoff.pass(g, now) {
		c.measureHold(g, nil)
		return done, nil
	}
	if cl.handoff != nil {
		cl.handoff.givenBack = now
	}
	c.end(cl, nil) // and known until the release is answered
	c.calls.Add(1)
	return sendRelease, nil
}

// endedError is what unlocking a claim that is over returns. If it was lost by
// our clock alone, the backend may still have it, and its holder is done now.
func (c *Client) endedError(g *Guard) error {
	cause := g.cause()
	if cause == nil {
		return ErrLockNotHeld
	}
	c.endContexts(g.claim)
	c.sweepLost(g)
	return cause
}

// sweepLost releases, once, what the backend may still have of a lock that was lost. It
// runs under mu.
func (c *Client) sweepLost(g *Guard) {
	if t := c.overdue[g]; t != nil {
		t.Stop()
		delete(c.overdue, g)
	}
	if !c.closed && !g.own.swept {
		g.own.swept = true
		c.settle(g.claim)
	}
}

// sendRelease tries until the backend answers, the caller's context ends or the
// bound is reached; in the last two cases clean-up goes on. A context that was
// dead from the start does not count: it is the usual case of a deferred Unlock.
func (c *Client) sendRelease(ctx context.Context, cl *claim) error {
	if isOver(ctx) {
		ctx = context.WithoutCancel(ctx)
	}
	bound := releaseBound(cl.ttl)
	limit, unanswered := int64(0), false
	for n := 0; ; n++ {
		if c.caps.Remote && limit == 0 { // a local backend answers at once, and reading the clock costs more than that
			limit = after(c.now(), bound)
		}
		cctx, cancel := c.callContext(ctx, bound)
		st, err := c.store.Release(cctx, cl.ref())
		cancel()
		if err == nil {
			return c.judge(cl, st, unanswered)
		}
		unanswered = unanswered || driver.ClassOf(err) == driver.Ambiguous
		if limit == 0 {
			limit = after(c.now(), bound)
		}
		bound = time.Duration(max(limit-c.now(), 0))
		if errors.Is(err, driver.ErrHasty) && bound > 0 {
			n--
			continue
		}
		if err := c.retryRelease(ctx, cl.id, err, n, bound); err != nil {
			c.mu.Lock()
			c.settle(cl)
			c.unlock()
			return err
		}
	}
}

// isOver reports whether a context has ended, or is about to: that of a function which ran
// until the caller's deadline ends by a timer of its own, perhaps before the caller's does.
func isOver(ctx context.Context) bool {
	if ctx.Err() != nil {
		return true
	}
	at, dated := ctx.Deadline()
	return dated && !time.Now().Before(at)
}

// judge says what the answer to a release means. Gone is a loss only while the lease lasts:
// after an attempt that was not answered it is what that attempt left behind, and after the
// lease nobody knows whether the release or the end of the lease came first.
func (c *Client) judge(cl *claim, st driver.State, repeated bool) error {
	switch {
	case st.Phase != driver.Gone:
		return nil
	case cl.expired(c.now()):
		return fmt.Errorf("%w: the lease was over when the backend answered that it does not have it", ErrUnknownOutcome)
	case repeated:
		return nil
	}
	return fmt.Errorf("%w: the backend did not know it any more", ErrOwnershipLost)
}

// retryRelease pauses before the next attempt, or says why there is none.
func (c *Client) retryRelease(ctx context.Context, id string, cause error, n int, left time.Duration) error {
	pause := c.pause(id, n)
	if driver.ClassOf(cause) != driver.Fatal {
		t := time.NewTimer(min(pause, left))
		defer t.Stop()
		select {
		case <-t.C:
		case <-ctx.Done():
			return fmt.Errorf("%w: releasing goes on: %w", ErrUnknownOutcome, ctxError(ctx))
		case <-c.closing.Done():
			return fmt.Errorf("%w: %w", ErrUnknownOutcome, ErrClosed)
		}
		if pause < left {
			return nil
		}
		return fmt.Errorf("%w: releasing goes on: %w", ErrUnknownOutcome, mayBeStored(notCallers(cause)))
	}
	return fmt.Errorf("%w: the release was refused, and the lock is left to its lease: %w", ErrUnknownOutcome, mayBeStored(notCallers(cause)))
}
