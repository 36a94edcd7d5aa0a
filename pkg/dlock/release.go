package dlock

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/internal/sharedtimeout"
)

// releaseTimeout limits how long Unlock tries to release before it returns and cleanup takes
// over.
func releaseTimeout(ttl time.Duration) time.Duration { return min(ttl/3, 2*time.Second) }

// release ends the ownership of a Guard and removes its claim from the backend. The Guard's
// context ends before anything is sent. A release does not wait for a renewal in flight, whose
// late answer is dropped. The user's logger, meter and tracer run only before and after it.
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

// releaseHeld is release without reports. It also returns whether the caller reports a release: g held
// the lock before, and nothing reports it later.
func (c *Client) releaseHeld(ctx context.Context, g *Guard) (bool, error) {
	end, err := c.endLocally(g)
	if end != mustRelease {
		return end != notHeld, err
	}
	if g.claim.asyncUnlock {
		c.releaseAsync(context.WithoutCancel(ctx), g)
		return false, nil
	}
	return true, c.releaseEnded(ctx, g, false, 0)
}

// releaseEnded removes the claim of a Guard that has ended. unanswered says that an attempt was not
// answered, limit until when to try if this Unlock has tried before.
func (c *Client) releaseEnded(ctx context.Context, g *Guard, unanswered bool, limit int64) error {
	defer c.endCall()
	returned := false
	defer func() {
		if !returned { // a hook of the backend's client or the caller's context panicked
			c.mu.Lock()
			c.cleanUp(g.claim)
			c.unlock()
			c.finishRelease(g, nil)
		}
	}()
	err := c.sendRelease(ctx, g.claim, unanswered, limit)
	returned = true
	c.finishRelease(g, err)
	return err
}

// finishRelease removes a claim whose release was answered or handed to cleanup. It records how the
// hold ended, and lets the next local waiter submit a claim if releaseAsync has not.
func (c *Client) finishRelease(g *Guard, err error) {
	c.mu.Lock()
	defer c.unlockCall()
	c.recordRelease(g, err)
}

// recordRelease is finishRelease under mu.
func (c *Client) recordRelease(g *Guard, err error) {
	c.claims.remove(g.claim)
	lost := errors.Is(err, ErrOwnershipLost)
	if !lost {
		err = nil
	}
	c.measureHold(g, err)
	if lost {
		g.ownership().cause, g.ownership().released = err, true
		c.reportLoss(g, lossTaken, "the backend did not have it any more when it was unlocked")
	}
	g.claim.endTurn()
}

// An unlockResult says what remains to be done after endLocally.
type unlockResult uint8

const (
	notHeld       unlockResult = iota // nothing: the Guard had ended before
	nothingToSend                     // nothing: the lock was handed to a local waiter, or lingers
	mustRelease                       // the caller must release the claim
)

// endLocally ends a Guard in this process.
func (c *Client) endLocally(g *Guard) (unlockResult, error) {
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
		return notHeld, c.unlockError(g)
	}
	if x := cl.extras; x != nil && now < after(g.since, x.minHold) {
		cl.phase, cl.verify = lingering, false
		if cl.noRenew { // the claim must last for the minimum hold
			cl.noRenew, cl.renewAt = false, now
		}
		g.endContext(nil)
		c.reschedule(cl)
		return nothingToSend, nil
	}
	if cl.handoff != nil && cl.handoff.passOn(g, now) {
		c.measureHold(g, nil)
		return nothingToSend, nil
	}
	if cl.handoff != nil {
		cl.handoff.releasedAt = now
	}
	c.end(cl, nil) // stays in the registry until the release is answered
	c.calls.Add(1)
	if cl.asyncUnlock {
		c.abandoned.begin(cl.key)
	}
	return mustRelease, nil
}

// unlockError returns the error of unlocking a Guard that does not hold its lock. It also
// releases a lost lock: the backend may still store it, and its holder has stopped.
func (c *Client) unlockError(g *Guard) error {
	cause := g.cause()
	if cause == nil {
		return ErrLockNotHeld
	}
	c.endContexts(g.claim)
	c.releaseLost(g)
	return cause
}

// sendRelease tries until the backend answers, the caller's context ends, or the timeout has
// passed; in the last two cases cleanup takes over. A context that has already ended is
// ignored: this is usual for a deferred Unlock. limit is 0 for the first attempt of an Unlock.
func (c *Client) sendRelease(ctx context.Context, cl *claim, unanswered bool, limit int64) error {
	timeout := releaseTimeout(cl.ttl)
	if limit != 0 {
		timeout = time.Duration(max(limit-c.now(), 0))
	} else if contextEnded(ctx) {
		ctx = context.WithoutCancel(ctx)
	}
	for n := 0; ; n++ {
		if c.caps.Remote && limit == 0 { // for a local backend, reading the clock would cost more than the call
			limit = after(c.now(), timeout)
		}
		cctx, cancel := c.callContext(ctx, timeout)
		st, err := c.store.Release(cctx, cl.ref())
		cancel()
		if err == nil {
			return c.releaseError(cl, st, unanswered)
		}
		unanswered = unanswered || driver.ClassOf(err) == driver.Ambiguous
		if limit == 0 {
			limit = after(c.now(), timeout)
		}
		timeout = time.Duration(max(limit-c.now(), 0))
		if errors.Is(err, sharedtimeout.ErrAttemptTimeout) && timeout > 0 {
			n--
			continue
		}
		if err := c.retryRelease(ctx, cl.id, err, n, timeout); err != nil {
			c.mu.Lock()
			c.cleanUp(cl)
			c.unlock()
			return err
		}
	}
}

// contextEnded reports whether a context has ended, or its deadline has passed: a derived context
// has its own timer, which may fire before that of ctx.
func contextEnded(ctx context.Context) bool {
	if ctx.Err() != nil {
		return true
	}
	at, hasDeadline := ctx.Deadline()
	return hasDeadline && !time.Now().Before(at)
}

// releaseError returns the error for an answer to a release. Gone is a loss only while the lease
// lasts. After an unanswered attempt, Gone is the result of that attempt. After the lease, it is
// unknown whether the release or the end of the lease came first.
func (c *Client) releaseError(cl *claim, st driver.State, repeated bool) error {
	switch {
	case st.Phase != driver.Gone:
		return nil
	case cl.expired(c.now()):
		return fmt.Errorf("%w: the lease had ended when the backend answered that it does not have the lock", ErrUnknownOutcome)
	case repeated:
		return nil
	}
	return fmt.Errorf("%w: the backend did not have it any more", ErrOwnershipLost)
}

// retryRelease pauses before the next attempt, or returns why there is none.
func (c *Client) retryRelease(ctx context.Context, id string, cause error, n int, left time.Duration) error {
	pause := c.pause(id, n)
	if driver.ClassOf(cause) != driver.Fatal {
		t := time.NewTimer(min(pause, left))
		defer t.Stop()
		select {
		case <-t.C:
		case <-ctx.Done():
			return fmt.Errorf("%w: the release continues in the background: %w", ErrUnknownOutcome, ctxError(ctx))
		case <-c.closing.Done():
			return fmt.Errorf("%w: %w", ErrUnknownOutcome, ErrClosed)
		}
		if pause < left {
			return nil
		}
		return fmt.Errorf("%w: the release continues in the background: %w", ErrUnknownOutcome, mayBeStored(hideContextErrors(cause)))
	}
	return fmt.Errorf("%w: the release was refused, and the lock is left to its lease: %w", ErrUnknownOutcome, mayBeStored(hideContextErrors(cause)))
}
