package dlock

import (
	"context"
	"fmt"
	"time"

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
	reports bool // a release is reported when it has ended
	open    bool // the claim must be released
	err     error
}

// canBatch reports whether the backend can release all locks in one call.
func (gs *Guards) canBatch() bool {
	first := gs.all[0].claim
	b := first.client.batcher
	return len(gs.all) > 1 && !gs.pair && b != nil && first.mode == driver.Exclusive && b.CanBatch(gs.Keys())
}

// unlockBatch unlocks all Guards. Each is reported as if it had been unlocked alone.
func (c *Client) unlockBatch(ctx context.Context, guards []*Guard, errs []error) {
	u, started := batchUnlock{client: c, parts: make([]unlockPart, len(guards))}, time.Now()
	for i, g := range guards {
		u.parts[i].guard = g
	}
	u.begin(ctx)
	u.run(ctx)
	if !c.unobserved() {
		each(len(u.parts), func(i int) { u.parts[i].report(ctx, started) })
		c.reporter.deliver()
	}
	for i := range u.parts {
		p := &u.parts[i]
		errs[i] = fail("unlock", p.guard.claim.key, p.err)
	}
}

// report reports one release. Its span begins after the call: a slow tracer must not keep the locks.
func (p *unlockPart) report(ctx context.Context, started time.Time) {
	c := p.guard.claim.client
	traced, span := c.traceRelease(ctx, p.guard, trace.WithTimestamp(started))
	if p.reports {
		c.measureRelease(traced, p.err)
		if p.err == nil {
			c.logReleased(p.guard)
		}
	}
	safely(func() { endSpan(span, p.err) })
}

// begin ends the Guards in this process, and begins the releases that nobody waits for.
func (u *batchUnlock) begin(ctx context.Context) {
	c := u.client
	for i := range u.parts {
		p := &u.parts[i]
		var end unlockResult
		end, p.err = c.endLocally(p.guard)
		p.reports, p.open = end != notHeld, end == mustRelease
		if p.open && p.guard.claim.asyncUnlock {
			c.releaseAsync(context.WithoutCancel(ctx), p.guard)
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
		p.err = u.client.releaseEnded(ctx, p.guard, unanswered, u.limit(p))
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
