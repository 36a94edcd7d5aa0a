package dlock

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.opentelemetry.io/otel/trace"
)

// A Guard is the ownership of one lock, by handle: whoever has it may unlock
// it. It must not be copied; a copy, like the zero Guard, holds nothing.
type Guard struct {
	_     noCopy
	self  *Guard // itself; a copied Guard has another's
	claim *claim

	// Under the Client's mu.
	token int64
	since int64      // when it was acquired, or handed over
	own   *ownership // nil: nobody asked, and it was not lost
}

// An ownership is what somebody asked to know about the end of a Guard.
type ownership struct {
	ctx    context.Context
	cancel context.CancelCauseFunc
	cause  error // why it ended; nil if it was released
	span   trace.Span
	swept  bool // it was lost, and its Unlock has cleaned up
}

// An ending is a context that unlock ends, with its cause.
type ending struct {
	cancel context.CancelCauseFunc
	cause  error
}

// noCopy makes go vet find copies.
type noCopy struct{}

func (*noCopy) Lock()   {}
func (*noCopy) Unlock() {}

// newGuard returns a Guard of a new claim, both in one piece of memory.
func newGuard(cl claim) *Guard {
	both := &struct {
		guard Guard
		claim claim
	}{claim: cl}
	g := &both.guard
	g.self, g.claim, both.claim.guard = g, &both.claim, g
	return g
}

// successor returns the Guard that a claim is handed to.
func (g *Guard) successor() *Guard {
	next := &Guard{claim: g.claim}
	next.self = next
	return next
}

// usable reports whether g came from a Client and was not copied.
func (g *Guard) usable() bool { return g != nil && g.self == g && g.claim != nil }

// holds reports whether g owns its claim, and the claim is held.
func (g *Guard) holds() bool { return g.claim.guard == g && g.claim.phase == held }

// begin and end are the bounds of a hold. They run under mu.
func (g *Guard) begin(token, now int64) {
	g.token, g.since = token, now
	g.claim.client.measure(measurement{of: measuredHeld, n: 1})
}

// end has the context end in unlock. cause is nil if the lock was released: whoever
// releases it knows how the hold ended, and records it.
func (g *Guard) end(cause error) {
	c := g.claim.client
	c.measure(measurement{of: measuredHeld, n: -1})
	if cause != nil || g.claim.phase == lingering {
		c.measureHold(g, cause)
	}
	if cause != nil {
		g.ownership().cause = cause
	}
	g.endContext(cause)
}

// endContext ends what was asked for of g. Its span ends when mu is free.
func (g *Guard) endContext(cause error) {
	o := g.own
	if o == nil {
		return
	}
	c := g.claim.client
	if o.cancel != nil {
		c.endings = append(c.endings, ending{o.cancel, cause})
	}
	if span := o.span; span != nil {
		o.span = nil
		c.report(func() { endSpan(span, cause) })
	}
}

func (g *Guard) ownership() *ownership {
	if g.own == nil {
		g.own = &ownership{}
	}
	return g.own
}

// cause is why a Guard that is over was lost or closed, nil if it was released.
func (g *Guard) cause() error {
	if g.own == nil {
		return nil
	}
	return g.own.cause
}

// Key returns the name of the lock.
func (g *Guard) Key() string {
	if !g.usable() {
		return ""
	}
	return g.claim.key
}

// Token returns the fencing token: greater than that of every holder before, in
// this backend. Hand it to whatever you write to and let that refuse a smaller
// one. It is 0 if the backend has no fencing.
func (g *Guard) Token() int64 {
	if !g.usable() {
		return 0
	}
	return g.token // fixed before the Guard was handed out
}

// Remaining returns how long ownership lasts if nothing is renewed any more; 0
// if it is over. A backend without a lease has no end.
func (g *Guard) Remaining() time.Duration {
	if !g.usable() {
		return 0
	}
	c := g.claim.client
	c.mu.Lock()
	defer c.unlock()
	if !g.holds() {
		return 0
	}
	left := g.claim.remaining(c.now())
	if left <= 0 {
		c.lose(g.claim, lossExpired, notRenewed)
		return 0
	}
	return left
}

// notRenewed is why a lock is lost whose lease ran out.
const notRenewed = "the lease was not renewed in time"

// Context returns a context that ends when ownership ends: by Unlock, by Close,
// or by a loss. context.Cause then tells why. It carries the Guard, for
// FromContext and for re-entry. Asking for it makes it; a lock whose context
// nobody asks for has none.
func (g *Guard) Context() context.Context {
	if !g.usable() {
		ctx, cancel := context.WithCancelCause(context.Background())
		cancel(fail("context", "", ErrLockNotHeld))
		return ctx
	}
	c := g.claim.client
	c.mu.Lock()
	defer c.unlock()
	o := g.ownership()
	if o.ctx == nil {
		o.ctx, o.cancel = context.WithCancelCause(marked(context.Background(), g))
	}
	if !g.holds() { // another goroutine that ended it may not have come to the context yet
		c.endings = append(c.endings, ending{o.cancel, o.cause})
	}
	return o.ctx
}

// WithContext returns a child of parent that also ends when ownership does, with
// the loss as its cause. Call cancel when the work is done.
func (g *Guard) WithContext(parent context.Context) (context.Context, context.CancelFunc) {
	if parent == nil {
		parent = context.Background()
	}
	ctx, cancel := context.WithCancelCause(marked(both{g.Context(), parent}, g))
	end := func() { cancel(nil) }
	if at, ok := parent.Deadline(); ok { // so that ctx.Err says that it was the deadline
		var stop context.CancelFunc
		ctx, stop = context.WithDeadline(ctx, at)
		end = func() { stop(); cancel(nil) }
	}
	_, dated := parent.Deadline()
	follow := func() {
		if !dated || !errors.Is(parent.Err(), context.DeadlineExceeded) {
			cancel(context.Cause(parent))
		}
	}
	if parent.Err() != nil {
		follow()
	}
	unlink := context.AfterFunc(parent, follow)
	return ctx, func() { unlink(); end() }
}

// both ends with the guard's context and has the values and the deadline of
// parent. The guard is asked first, so that the standard library links its
// children to it directly and a loss reaches them without another goroutine.
type both struct {
	context.Context // the guard's
	parent          context.Context
}

func (b both) Deadline() (time.Time, bool) { return b.parent.Deadline() }

func (b both) Value(key any) any {
	if _, ours := key.(markKey); !ours {
		if v := b.Context.Value(key); v != nil {
			return v
		}
	}
	return b.parent.Value(key)
}

// Done returns a channel that is closed when ownership ends.
func (g *Guard) Done() <-chan struct{} { return g.Context().Done() }

// Extend sets the TTL to ttl from now on, and returns when the backend has
// agreed. With WithoutRenewal it is the only renewal there is. If ctx ends
// first the outcome is unknown, and the renewals that follow settle it.
func (g *Guard) Extend(ctx context.Context, ttl time.Duration) error {
	if !g.usable() {
		return fail("extend", "", fmt.Errorf("%w: zero or copied Guard", ErrLockNotHeld))
	}
	return fail("extend", g.claim.key, g.claim.client.extend(ctx, g, ttl))
}

func (c *Client) extend(ctx context.Context, g *Guard, ttl time.Duration) error {
	if ctx == nil {
		return fmt.Errorf("%w: context is nil", ErrInvalidConfig)
	}
	if err := checkTTL(ttl, max(c.caps.MinTTL, 2*g.claim.askedMargin())); err != nil {
		return err
	}
	cl := g.claim
	c.mu.Lock()
	if g.holds() && cl.expired(c.now()) {
		c.lose(cl, lossExpired, notRenewed)
	}
	if !g.holds() {
		defer c.unlock()
		return c.goneError(g)
	}
	cl.ttl, cl.verify = ttl, false
	if cl.wait == nil {
		cl.wait = &wait{changed: make(chan struct{}, 1)}
	}
	w := cl.wait
	w.since = c.now()
	c.renewNow(cl)
	c.unlock()
	return c.awaitExtension(ctx, g, w)
}

// awaitExtension waits until a renewal with the new TTL was answered, which
// takes w off the claim.
func (c *Client) awaitExtension(ctx context.Context, g *Guard, w *wait) error {
	for {
		select {
		case <-w.changed:
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", ErrUnknownOutcome, ctxError(ctx))
		}
		c.mu.Lock()
		over, extended, err := !g.holds(), g.claim.wait != w, c.goneError(g)
		c.unlock()
		if over || extended {
			w.signal() // for another Extend that waits on the same
		}
		switch {
		case over:
			return err
		case extended:
			return nil
		}
	}
}

// goneError is why a claim cannot be used any more.
func (c *Client) goneError(g *Guard) error {
	if cause := g.cause(); cause != nil {
		return cause
	}
	return ErrLockNotHeld
}

// Unlock ends ownership and releases the lock. The Guard's context ends first.
//
// With a live ctx it returns when ctx ends, and releasing goes on. With a ctx
// that was dead before, as in a deferred call, it still releases, within a third
// of the TTL and at most two seconds. ErrOwnershipLost means that the lock had
// ended before; ErrUnknownOutcome that the backend did not confirm, in which case
// clean-up goes on, or only after the lease had ended. Unlocking a second time is ErrLockNotHeld and touches nothing.
func (g *Guard) Unlock(ctx context.Context) error {
	if !g.usable() {
		return fail("unlock", "", fmt.Errorf("%w: zero or copied Guard", ErrLockNotHeld))
	}
	if ctx == nil {
		return fail("unlock", g.claim.key, fmt.Errorf("%w: context is nil", ErrInvalidConfig))
	}
	return fail("unlock", g.claim.key, g.claim.client.release(ctx, g))
}
