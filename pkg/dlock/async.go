package dlock

import (
	"context"
	"errors"
	"fmt"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// releaseAsync releases the claim of a Guard that has ended, without waiting for the answer. If the
// backend can, the release is sent with the next call.
func (c *Client) releaseAsync(ctx context.Context, g *Guard) {
	if c.late == nil {
		c.workers.Go(func() { c.releaseLater(ctx, g, false) })
		return
	}
	c.late.ReleaseLater(g.claim.ref(), func(st driver.State, err error) {
		if err != nil {
			c.workers.Go(func() { c.releaseLater(ctx, g, driver.ClassOf(err) == driver.Ambiguous) })
			return
		}
		defer c.endCall()
		err = c.releaseError(g.claim, st, false)
		c.mu.Lock()
		c.recordRelease(g, err)
		c.unlock() // waits for nothing: this may be the goroutine of another call
		c.reportAsync(ctx, g, err)
	})
	if g.claim.handoff != nil { // the claim of the next turn is sent with the release
		c.mu.Lock()
		g.claim.endTurn()
		c.unlock()
	}
}

// releaseLater is releaseEnded for a Guard whose Unlock has returned.
func (c *Client) releaseLater(ctx context.Context, g *Guard, unanswered bool) {
	err := error(nil)
	defer func() {
		if p := recover(); p != nil { // of a hook of the backend's client: no caller is left to recover from it
			err = fmt.Errorf("%w: a hook panicked: %v", ErrUnknownOutcome, p)
		}
		c.reportAsync(ctx, g, err)
	}()
	err = c.releaseEnded(ctx, g, unanswered, 0)
}

// reportAsync reports how a release ended after its Unlock had returned, also to calls that wait for it.
func (c *Client) reportAsync(ctx context.Context, g *Guard, err error) {
	c.mu.Lock()
	c.abandoned.end(g.claim.key)
	c.unlock()
	if c.unobserved() && (err == nil || c.quiet) {
		return
	}
	c.reporter.add([]report{{run: func() {
		c.measureRelease(ctx, err)
		switch {
		case err == nil:
			c.logReleased(g)
		case !errors.Is(err, ErrOwnershipLost): // recordRelease reports a loss
			c.logUnconfirmed(g, err)
		}
	}}})
}
