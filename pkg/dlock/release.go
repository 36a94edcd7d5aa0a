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

// release ends the ownership of a claim and takes it from the backend. The
// guard's context ends before anything is sent. A release does not wait for a
// renewal under way, whose late answer is dropped.
func (c *Client) release(ctx context.Context, g *Guard) error {
	send, err := c.endHeld(g)
	if !send {
		return err
	}
	defer c.leave()
	if r := g.relay; r != nil {
		defer r.over() // what follows finds the key free, or waits for others
	}
	traced, span := c.traceRelease(ctx, &g.claim)
	err = c.sendRelease(traced, &g.claim)
	c.measureRelease(traced, err)
	endSpan(span, err)
	if err == nil {
		c.logReleased(&g.claim)
	}
	return err
}

// endHeld ends a claim locally and reports whether it is to be released now. If
// so, the caller must leave.
func (c *Client) endHeld(g *Guard) (send bool, err error) {
	c.mu.Lock()
	defer c.unlock()
	now := c.now()
	if g.phase == held && g.expired(now) {
		c.lose(&g.claim, lossUnlocked, "it was unlocked after its lease")
	}
	if h := c.keyed[g.key]; h != nil && h.guard == g {
		delete(c.keyed, g.key)
	}
	if g.phase != held {
		return false, c.endedError(g)
	}
	if l := g.limits; l != nil && now < after(g.since, l.minHold) {
		g.phase = lingering
		if g.noRenew { // the key is kept for the least hold, not for the holder
			g.noRenew, g.renewAt = false, now
		}
		if life := g.life; life != nil && life.cancel != nil {
			c.over = append(c.over, life)
		}
		c.place(&g.claim)
		return false, nil
	}
	if r := g.relay; r != nil {
		if r.pass(g, now) {
			c.reports = append(c.reports, func() { c.logReleased(&g.claim) })
			return false, nil
		}
	}
	c.finish(&g.claim, nil)
	c.calls.Add(1)
	return true, nil
}

// endedError is what unlocking a claim that is over returns. If it was lost by
// our clock alone, the backend may still have it, and its holder is done now.
func (c *Client) endedError(g *Guard) error {
	cause := g.cause()
	if cause == nil {
		return ErrLockNotHeld
	}
	if !c.closed && !g.swept {
		g.swept = true
		c.settle(&g.claim)
	}
	return cause
}

// sendRelease tries until the backend answers, the caller's context ends or the
// bound is reached; in the last two cases clean-up goes on. A context that was
// dead from the start does not count: it is the usual case of a deferred Unlock.
func (c *Client) sendRelease(ctx context.Context, cl *claim) error {
	if ctx.Err() != nil {
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
		if err := c.retryRelease(ctx, err, n, bound); err != nil {
			c.mu.Lock()
			c.settle(cl)
			c.unlock()
			return err
		}
	}
}

// judge says what the answer to a release means. After an attempt that was not
// answered, Gone is what that attempt left behind, unless the lease is over.
func (c *Client) judge(cl *claim, st driver.State, repeated bool) error {
	if st.Phase != driver.Gone || (repeated && !cl.expired(c.now())) {
		return nil
	}
	return fmt.Errorf("%w: the backend did not know it any more", ErrOwnershipLost)
}

// retryRelease pauses before the next attempt, or says why there is none.
func (c *Client) retryRelease(ctx context.Context, cause error, n int, left time.Duration) error {
	pause := c.pause(n)
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
	}
	return fmt.Errorf("%w: releasing goes on: %v", ErrUnknownOutcome, cause) //nolint:errorlint // a timeout in it is not the caller's
}
