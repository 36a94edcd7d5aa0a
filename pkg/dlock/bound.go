package dlock

import (
	"context"
	"sync"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// Every call to a remote backend is bounded in time and ends when the Client
// closes. A context with a timer for each of them would cost more than the rest
// of the engine, so calls that begin within a while share one.

// untilClose returns a ctx that also ends when the Client closes.
func (c *Client) untilClose(ctx context.Context) (context.Context, func()) {
	return follow(ctx, c.closing)
}

// callContext bounds one call to a remote backend. A local one answers at once
// and needs no bound.
func (c *Client) callContext(ctx context.Context, bound time.Duration) (context.Context, func()) {
	switch {
	case !c.caps.Remote:
		return ctx, func() {}
	case bound < shareFrom:
		ctx, cancel := context.WithTimeout(ctx, bound)
		unlink := context.AfterFunc(c.closing, cancel)
		return ctx, func() {
			unlink()
			cancel()
		}
	case ctx.Done() == nil:
		return driver.Uncancelled{Context: c.bounds.shared(c.closing, bound), Values: ctx}, func() {}
	}
	return follow(ctx, c.bounds.shared(c.closing, bound))
}

// follow returns a child of ctx that also ends with other, and knows the deadline
// of both.
func follow(ctx, other context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancel(ctx)
	unlink := context.AfterFunc(other, cancel)
	if at, ok := other.Deadline(); ok {
		if own, has := ctx.Deadline(); !has || at.Before(own) {
			ctx = dated{ctx, at}
		}
	}
	return ctx, func() {
		unlink()
		cancel()
	}
}

// dated is a context that ends at a time which somebody else sees to.
type dated struct {
	context.Context
	at time.Time
}

func (d dated) Deadline() (time.Time, bool) { return d.at, true }

// shareFrom is the shortest bound that is shared: a shared one may end up to a
// quarter early.
const shareFrom = 100 * time.Millisecond

// bounds keeps the contexts that are shared now: one for acquiring and one for
// releasing are all that most programs need.
type bounds struct {
	mu   sync.Mutex
	kept [2]struct {
		ctx   context.Context
		end   context.CancelFunc // not called: others may use ctx when it is replaced
		bound time.Duration
		fresh time.Time // until when it may be given out
	}
	last int
}

// shared returns a child of parent that ends after bound, or up to a quarter of
// that sooner. Nobody ends it but its own timer, or parent.
func (b *bounds) shared(parent context.Context, bound time.Duration) context.Context {
	now := time.Now()
	b.mu.Lock()
	defer b.mu.Unlock()
	for i := range b.kept {
		if k := &b.kept[i]; k.bound == bound && now.Before(k.fresh) {
			b.last = i
			return k.ctx
		}
	}
	b.last = 1 - b.last // the one that was not used last
	k := &b.kept[b.last]
	k.ctx, k.end = context.WithDeadline(parent, now.Add(bound))
	k.bound, k.fresh = bound, now.Add(bound/4)
	return k.ctx
}
