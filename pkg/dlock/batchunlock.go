package dlock

import (
	"context"
	"fmt"

	"go.opentelemetry.io/otel/trace"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// A batchUnlock releases several locks in one call to the backend, and those that the call leaves alone.
type batchUnlock struct {
	client *Client
	parts  []unlockPart
	begun  int64
}

// An unlockPart is the part of one Guard.
type unlockPart struct {
	guard   *Guard
	traced  context.Context // of its span
	span    trace.Span
	reports bool // a release is reported when it has ended
	open    bool // the claim must be released
	err     error
}

// canBatch reports whether the backend can release all locks in one call.
func (gs *Guards) canBatch() bool {
	b := gs.all[0].claim.client.batcher
	return len(gs.all) > 1 && !gs.pair && b != nil && b.CanBatch(gs.Keys())
}

// unlockBatch unlocks all Guards. Each is reported as if it had been unlocked alone.
func (c *Client) unlockBatch(ctx context.Context, guards []*Guard, errs []error) {
	u, observed := batchUnlock{client: c, parts: make([]unlockPart, 0, len(guards))}, !c.unobserved()
	for _, g := range guards {
		p := unlockPart{guard: g, traced: ctx}
		if observed {
			p.traced, p.span = c.traceRelease(ctx, g)
		}
		u.parts = append(u.parts, p)
	}
	u.begin()
	u.run(ctx)
	for i := range u.parts {
		p := &u.parts[i]
		if p.reports && observed {
			c.measureRelease(p.traced, p.err) //nolint:contextcheck // a child of ctx
			if p.err == nil {
				c.logReleased(p.guard)
			}
		}
		if observed {
			safely(func() { endSpan(p.span, p.err) })
		}
		errs[i] = fail("unlock", p.guard.claim.key, p.err)
	}
	if observed {
		c.reporter.deliver()
	}
}

// begin ends the Guards in this process, and begins the releases that nobody waits for.
func (u *batchUnlock) begin() {
	c := u.client
	for i := range u.parts {
		p := &u.parts[i]
		var end unlockResult
		end, p.err = c.endLocally(p.guard)
		p.reports, p.open = end != notHeld, end == mustRelease
		if p.open && p.guard.claim.asyncUnlock {
			c.releaseAsync(context.WithoutCancel(p.traced), p.guard)
			p.reports, p.open = false, false
		}
	}
	u.begun = c.now()
}

// run releases the open claims. As for a single one, a context that has already ended is ignored, and one that ends
// meanwhile leaves the rest to cleanup.
func (u *batchUnlock) run(ctx context.Context) {
	open, refs := make([]*unlockPart, 0, len(u.parts)), make([]driver.Ref, 0, len(u.parts))
	for i := range u.parts {
		if p := &u.parts[i]; p.open {
			open, refs = append(open, p), append(refs, p.guard.claim.ref())
		}
	}
	if len(open) == 0 {
		return
	}
	answered := false
	defer func() {
		if !answered { // a hook of the backend's client or the caller's context panicked
			u.cleanUp(open)
		}
	}()
	if contextEnded(ctx) {
		ctx = context.WithoutCancel(ctx)
		for _, p := range open {
			p.traced = context.WithoutCancel(p.traced)
		}
	}
	states, err := u.send(ctx, refs)
	answered = true
	left := open[:0:0]
	for i, p := range open {
		if err != nil || states[i].Phase == driver.Unknown {
			left = append(left, p)
			continue
		}
		p.err = u.client.releaseError(p.guard.claim, states[i], false)
		u.end(p)
	}
	unanswered := err != nil && driver.ClassOf(err) == driver.Ambiguous
	each(len(left), func(i int) {
		p := left[i]
		p.err = u.client.releaseEnded(p.traced, p.guard, unanswered, u.limit(p))
	})
}

// cleanUp leaves the releases to cleanup.
func (u *batchUnlock) cleanUp(open []*unlockPart) {
	for _, p := range open {
		u.client.mu.Lock()
		u.client.cleanUp(p.guard.claim)
		u.client.unlock()
		u.end(p)
	}
}

// limit is when Unlock stops waiting for the release of one lock.
func (u *batchUnlock) limit(p *unlockPart) int64 {
	return after(u.begun, releaseTimeout(p.guard.claim.ttl))
}

// send makes the call.
func (u *batchUnlock) send(ctx context.Context, refs []driver.Ref) ([]driver.State, error) {
	timeout := releaseTimeout(refs[0].TTL)
	for i := range refs {
		timeout = min(timeout, releaseTimeout(refs[i].TTL))
	}
	cctx, cancel := u.client.callContext(ctx, timeout)
	defer cancel()
	states, err := u.client.batcher.ReleaseBatch(cctx, refs)
	if err == nil && len(states) != len(refs) {
		err = fmt.Errorf("%d answers to %d releases", len(states), len(refs))
	}
	return states, err
}

// end records how the release of one lock has ended.
func (u *batchUnlock) end(p *unlockPart) {
	u.client.finishRelease(p.guard, p.err)
	u.client.endCall()
}
