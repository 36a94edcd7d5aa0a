package dlock

import (
	"context"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// Every call to a remote backend is bounded in time and ends when the Client
// closes. A context with a timer for each of them would cost more than the rest
// of the engine, so calls that begin within a while share one.

// untilClose returns a ctx that also ends when the Client closes.
func (c *Client) untilClose(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancel(ctx)
	unlink := context.AfterFunc(c.closing, cancel)
	return ctx, func() {
		unlink()
		cancel()
	}
}

// callContext bounds one call to a remote backend. A local one answers at once
// and needs no bound.
func (c *Client) callContext(ctx context.Context, bound time.Duration) (context.Context, func()) {
	switch {
	case !c.caps.Remote:
		return ctx, func() {}
	case bound < shareFrom:
		return c.ownContext(ctx, bound)
	case ctx.Done() == nil:
		return driver.Uncancelled{Context: c.bounds.Within(c.closing, bound), Values: ctx}, func() {}
	}
	j := driver.Join(ctx, c.bounds.Within(c.closing, bound))
	return j, j.Part
}

// ownContext bounds one call, as callContext does, with a timer of its own.
func (c *Client) ownContext(ctx context.Context, bound time.Duration) (context.Context, func()) {
	if !c.caps.Remote {
		return ctx, func() {}
	}
	ctx, cancel := context.WithTimeout(ctx, bound)
	unlink := context.AfterFunc(c.closing, cancel)
	return ctx, func() {
		unlink()
		cancel()
	}
}

// shareFrom is the shortest bound that is shared: a shared one may end up to a
// quarter early.
const shareFrom = 100 * time.Millisecond
