package dlock

import (
	"context"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock/internal/sharedtimeout"
)

// Every call to a remote backend has a timeout and ends when the Client closes. A context
// with a timer for each call would cost more than the rest of the engine, so calls that begin
// at about the same time share one.

// untilClose returns a child of ctx that also ends when the Client closes.
func (c *Client) untilClose(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancel(ctx)
	unlink := context.AfterFunc(c.closing, cancel)
	return ctx, func() {
		unlink()
		cancel()
	}
}

// callContext limits one call to a remote backend. A local backend answers at once and needs
// no timeout.
func (c *Client) callContext(ctx context.Context, timeout time.Duration) (context.Context, func()) {
	switch {
	case !c.caps.Remote:
		return ctx, func() {}
	case timeout < shareFrom:
		return c.ownContext(ctx, timeout)
	case ctx.Done() == nil:
		return sharedtimeout.Uncancelled{Context: c.timeouts.Within(c.closing, timeout), Values: ctx}, func() {}
	}
	j := sharedtimeout.Join(ctx, c.timeouts.Within(c.closing, timeout))
	return j, j.Unlink
}

// attemptTimeout limits one attempt to submit a claim.
const attemptTimeout = 2 * time.Second

// callContext limits one attempt. The rest of a WithWait differs for each call, so its timeout
// is not shared.
func (a *acquisition) callContext(ctx context.Context) (context.Context, time.Duration, func()) {
	c, timeout := a.client, min(a.settings.ttl, attemptTimeout)
	if a.deadline != never {
		if left := time.Duration(max(a.deadline-c.now(), 0)); left < timeout {
			cctx, cancel := c.ownContext(ctx, left)
			return cctx, left, cancel
		}
	}
	cctx, cancel := c.callContext(ctx, timeout)
	return cctx, timeout, cancel
}

// ownContext limits one call, as callContext does, with its own timer.
func (c *Client) ownContext(ctx context.Context, timeout time.Duration) (context.Context, func()) {
	if !c.caps.Remote {
		return ctx, func() {}
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	unlink := context.AfterFunc(c.closing, cancel)
	return ctx, func() {
		unlink()
		cancel()
	}
}

// shareFrom is the shortest timeout that is shared: a shared timeout may end up to a quarter
// early.
const shareFrom = 100 * time.Millisecond

// waitDeadline returns when a call that begins now has waited for its WithWait limit.
func (c *Client) waitDeadline(s *lockSettings) int64 {
	if !s.hasWait || s.wait <= 0 {
		return never
	}
	return after(c.now(), s.wait)
}
