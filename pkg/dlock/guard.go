package dlock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// A Guard is the handle of one held lock. Any code that has the Guard may unlock it. It
// must not be copied; a copy, like the zero Guard, holds nothing.
type Guard struct {
	_       noCopy
	self    *Guard // itself; in a copy it is the original
	claim   *claim
	callCtx context.Context // the context of the call that acquired it, for its values; under mu after it was returned

	// Under the Client's mu.
	token int64
	since int64      // when it was acquired, or handed over
	own   *ownership // nil: no context was requested, and it was not lost
}

// An ownership is the state of a Guard that few guards need. It is created on demand.
type ownership struct {
	ctx      context.Context // with the values of the call; see Guard.Context
	end      context.Context // without values; ends with the ownership
	cancel   context.CancelCauseFunc
	cause    error // why it ended; nil if it was released
	span     trace.Span
	released bool // it was lost, and its claim was handed to cleanup
}

// A cancellation is a context that unlock ends, with its cause.
type cancellation struct {
	cancel context.CancelCauseFunc
	cause  error
}

// noCopy makes go vet report copies.
type noCopy struct{}

func (*noCopy) Lock()   {}
func (*noCopy) Unlock() {}

// newGuard returns a Guard of a new claim, both in one allocation.
func newGuard(cl claim) *Guard {
	both := &struct {
		guard Guard
		claim claim
	}{claim: cl}
	g := &both.guard
	g.self, g.claim, both.claim.guard = g, &both.claim, g
	return g
}

// successor returns a new Guard for the same claim.
func (g *Guard) successor() *Guard {
	next := &Guard{claim: g.claim}
	next.self = next
	return next
}

func (g *Guard) withValues(ctx context.Context) *Guard {
	if g != nil {
		g.callCtx = ctx
	}
	return g
}

// usable reports whether g came from a Client and was not copied.
func (g *Guard) usable() bool { return g != nil && g.self == g && g.claim != nil }

// holds reports whether g owns its claim, and the claim is held.
func (g *Guard) holds() bool { return g.claim.guard == g && g.claim.phase == held }

// begin starts a hold, and end ends it. Both run under mu.
func (g *Guard) begin(token, now int64) {
	g.token, g.since = token, now
	g.claim.client.measure(measurement{of: measuredHeld, n: 1})
}

// end makes unlock end the context. If cause is nil, the lock was released, and the caller
// records how the hold ended.
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

// endContext ends the context and the span of g, in unlock.
func (g *Guard) endContext(cause error) {
	o := g.own
	if o == nil {
		return
	}
	c := g.claim.client
	if o.cancel != nil {
		c.cancellations = append(c.cancellations, cancellation{o.cancel, cause})
	}
	o.ctx = nil // it refers to the outer guards
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

// cause returns why a Guard was lost or closed, nil if it was released.
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

// Token returns the fencing token. It is greater than the token of every earlier holder of
// the key in this backend. Pass it to the system that you write to, and let that system refuse a
// smaller one. It is 0 if the backend has no fencing.
func (g *Guard) Token() int64 {
	if !g.usable() {
		return 0
	}
	return g.token // constant after the Guard was returned
}

// TTL returns the lease of the lock: how long it outlives its process, on a backend with leases.
func (g *Guard) TTL() time.Duration {
	if !g.usable() {
		return 0
	}
	c := g.claim.client
	c.mu.Lock()
	defer c.mu.Unlock()
	return g.claim.ttl
}

// LeaseID returns the lease of a lock that was acquired WithOwnLease. Data that you attach to it ends soon after the lock. If the lock has no lease of its own, the error is ErrUnsupported. Use
// etcdlock.LeaseOf, which returns the ID as etcd's client expects it.
func (g *Guard) LeaseID() (int64, error) {
	const op = "lease"
	if !g.usable() {
		return 0, fail(op, "", fmt.Errorf("%w: zero or copied Guard", ErrLockNotHeld))
	}
	cl := g.claim
	c := cl.client
	c.mu.Lock()
	holds, err := g.holds(), c.notHeldError(g)
	ref := driver.Ref{Key: cl.key, ID: cl.id, TTL: cl.ttl}
	c.unlock()
	if !holds {
		return 0, fail(op, cl.key, err)
	}
	if leaser, ok := c.store.(driver.Leaser); ok {
		if id, ok := leaser.LeaseID(ref); ok {
			return id, nil
		}
	}
	return 0, fail(op, cl.key, fmt.Errorf("%w: the lock has no lease of its own; acquire it WithOwnLease", ErrUnsupported))
}

// Remaining returns how long ownership lasts if no further renewal succeeds, and 0 if it
// has ended. On a backend without a lease it is the longest Duration.
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

const notRenewed = "the lease was not renewed in time"

// Err returns nil while the lock is held. Afterwards it returns ErrOwnershipLost after a loss,
// ErrLockNotHeld after Unlock or Leave, and ErrClosed after Close.
func (g *Guard) Err() error {
	if !g.usable() {
		return fail("hold", "", fmt.Errorf("%w: zero or copied Guard", ErrLockNotHeld))
	}
	if g.Remaining() > 0 {
		return nil
	}
	c := g.claim.client
	c.mu.Lock()
	err := c.notHeldError(g)
	c.unlock()
	return cmp.Or(asError(err), fail("hold", g.claim.key, err))
}

// asError returns err if it is an *Error, which already names its key, and nil otherwise.
func asError(err error) error {
	var own *Error
	if errors.As(err, &own) {
		return err
	}
	return nil
}

// Extend sets the TTL to ttl, counted from now, and returns when the backend has
// confirmed it. With WithoutRenewal, only Extend renews the lock. If ctx ends first, the
// outcome is unknown, and the next renewal decides. A call with a shorter TTL that was not
// answered may still arrive and shorten the lease: an earlier Extend, or a check of a lock without
// renewal. Until that is no longer possible (a minute, or its TTL if that is longer), a longer Extend
// counts for no more than the shorter TTL.
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
	if err := checkTTL(ttl, max(c.caps.MinTTL, 2*g.claim.requestedMargin())); err != nil {
		return err
	}
	cl := g.claim
	c.mu.Lock()
	if g.holds() && cl.expired(c.now()) {
		c.lose(cl, lossExpired, notRenewed)
	}
	if !g.holds() {
		defer c.unlock()
		return c.notHeldError(g)
	}
	if cl.ownLease && ttl != cl.ttl {
		defer c.unlock()
		return fmt.Errorf("%w: a lock with its own lease keeps its TTL of %v", ErrUnsupported, cl.ttl)
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

// awaitExtension waits until a renewal with the new TTL was answered, which removes w from
// the claim.
func (c *Client) awaitExtension(ctx context.Context, g *Guard, w *wait) error {
	for {
		select {
		case <-w.changed:
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", ErrUnknownOutcome, ctxError(ctx))
		}
		c.mu.Lock()
		ended, extended, err := !g.holds(), g.claim.wait != w, c.notHeldError(g)
		c.unlock()
		if ended || extended {
			w.signal() // for another Extend that waits on w
		}
		switch {
		case ended:
			return err
		case extended:
			return nil
		}
	}
}

// notHeldError returns why a Guard does not hold its lock any more.
func (c *Client) notHeldError(g *Guard) error {
	if cause := g.cause(); cause != nil {
		return cause
	}
	return ErrLockNotHeld
}

// Unlock ends ownership and releases the lock. The Guard's context ends first.
//
// With a live ctx, Unlock returns when ctx ends, and the release continues in the background.
// With a ctx that has already ended, as in a deferred call, it still releases the lock, within
// a third of the TTL and at most two seconds. ErrOwnershipLost means that the lock ended
// before Unlock. ErrUnknownOutcome means that the backend did not confirm the release, in
// which case cleanup continues, or confirmed it only after the lease had ended. ErrClosed
// means that Close has released the lock. A second Unlock changes nothing: it returns
// ErrLockNotHeld, or again the error with which the lock had ended.
func (g *Guard) Unlock(ctx context.Context) error {
	if !g.usable() {
		return fail("unlock", "", fmt.Errorf("%w: zero or copied Guard", ErrLockNotHeld))
	}
	if ctx == nil {
		return fail("unlock", g.claim.key, fmt.Errorf("%w: context is nil", ErrInvalidConfig))
	}
	return fail("unlock", g.claim.key, g.claim.client.release(ctx, g))
}

// UnlockInto unlocks a Guard at the end of a function, and joins an error of Unlock to the
// function's own:
//
//	func work(ctx context.Context) (err error) {
//		guard, err := client.Acquire(ctx, "report")
//		if err != nil {
//			return err
//		}
//		defer dlock.UnlockInto(&err, guard)
//		return write(guard.Context(), guard.Token())
//	}
//
// Like Unlock with a context that has ended, it releases the lock within a third of the TTL and
// at most two seconds.
func UnlockInto(err *error, g *Guard) {
	ctx := context.Background()
	safely(func() { ctx = g.Context() }) // its values let traces continue; it may call the user's code
	ended, cancel := context.WithCancel(ctx)
	cancel()
	failed := g.Unlock(ended)
	if err != nil && failed != nil {
		*err = errors.Join(*err, failed)
	}
}
