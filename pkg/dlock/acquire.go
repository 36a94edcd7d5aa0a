package dlock

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/internal/sharedtimeout"
)

// Acquire waits for key until ctx ends and returns a Guard for it. The context
// limits the wait only; the hold ends with Unlock. Goroutines of one Client
// contend with each other as they do with other processes.
//
// If ctx carries a Guard of the same key, the wait would never end. Acquire then
// returns ErrLockAlreadyHeld.
func (c *Client) Acquire(ctx context.Context, key string, opts ...LockOption) (*Guard, error) {
	return c.acquireGuard(ctx, "acquire", key, opts)
}

// TryAcquire returns a Guard if key is free. Otherwise it returns ErrLockHeldByOther.
// Where the backend can tell, the error names the holder, which costs a second
// call; TryLock does not make that call.
func (c *Client) TryAcquire(ctx context.Context, key string, opts ...LockOption) (*Guard, error) {
	return c.acquireGuard(ctx, "try acquire", key, append(opts[:len(opts):len(opts)], WithWait(0)))
}

func (c *Client) acquireGuard(ctx context.Context, op, key string, opts []LockOption) (*Guard, error) {
	s, err := c.check(ctx, key, opts)
	if err != nil {
		return nil, fail(op, key, err)
	}
	if c.guardFor(ctx, key) != nil {
		return nil, fail(op, key, fmt.Errorf("%w: the context carries its Guard or its owner", ErrLockAlreadyHeld))
	}
	g, err := c.acquire(ctx, key, &s)
	if err != nil {
		return nil, c.addHolder(ctx, fail(op, key, err), &s)
	}
	return g, nil
}

// check refuses bad input before anything is sent.
func (c *Client) check(ctx context.Context, key string, opts []LockOption) (lockSettings, error) {
	if ctx == nil {
		return lockSettings{}, fmt.Errorf("%w: context is nil", ErrInvalidConfig)
	}
	if err := checkKey(key); err != nil {
		return lockSettings{}, err
	}
	return c.settings(opts)
}

// acquire is acquireLock with logs, metrics and traces. The user's logger, meter and tracer run
// before and after it, so that a call that they block does not block Close.
func (c *Client) acquire(ctx context.Context, key string, s *lockSettings) (*Guard, error) {
	if c.unobserved() {
		g, err := c.acquireLock(ctx, key, s)
		return g.withValues(ctx), err
	}
	started := c.now()
	traced, span := c.traceAcquire(ctx, key, s)
	g, err := c.acquireLock(traced, key, s)
	if err == nil {
		c.logAcquired(g, started)
	}
	c.measureAcquire(traced, started, err)
	c.endAcquire(ctx, span, g, err)
	c.reporter.deliver()
	return g.withValues(ctx), err
}

// acquireLock acquires a lock, in the local queue of a handoff or with its own claim.
func (c *Client) acquireLock(ctx context.Context, key string, s *lockSettings) (*Guard, error) {
	if c.cfg.LocalBatch > 0 && s.sharesClaim() {
		return c.acquireLocal(ctx, key, s)
	}
	return c.acquireOwnClaim(ctx, key, s, nil)
}

// acquireOwnClaim submits a claim, and another one at the end of the queue if it loses its place.
func (c *Client) acquireOwnClaim(ctx context.Context, key string, s *lockSettings, p *progress) (*Guard, error) {
	if ctx.Err() != nil {
		return nil, ctxError(ctx)
	}
	if err := c.beginCall(); err != nil {
		return nil, err
	}
	defer c.endCall()
	deadline := c.waitDeadline(s)
	if err := c.awaitReleases(ctx, key, s); err != nil {
		return nil, err
	}
	a := acquisition{client: c, settings: *s, progress: p, started: c.now(), deadline: deadline}
	defer func() { s.submitted = a.settings.submitted }()
	return a.run(ctx, key, nil)
}

// run acquires the key. first is an attempt that was already made, or nil.
func (a *acquisition) run(ctx context.Context, key string, first *attempt) (*Guard, error) {
	for {
		if first == nil {
			first = &attempt{guard: a.register(key)}
		}
		g, err := a.submit(ctx, first)
		if !errors.Is(err, errPlaceLost) {
			return g, err
		}
		if err = a.placeLost(err); !first.left {
			err = a.backOff(ctx, err)
			if err != nil {
				return nil, err
			}
		}
		first = nil
	}
}

// An acquisition is one call that acquires a key.
type acquisition struct {
	client         *Client
	settings       lockSettings
	progress       *progress // what local waiters see of it; nil without local waiters
	started        int64
	deadline       int64  // of WithWait
	failures       int    // in a row
	id             string // of the last claim
	cause          error  // of the last failed attempt that had one
	earlierUnknown bool   // the outcome of an earlier claim is unknown: it may be stored
	queued         bool   // the last claim was answered and stored
	sends          int
	hasTurn        bool  // see awaitTurn
	answers        int64 // of the Client, when it was last asked
}

// submit submits one claim, with the same ID until the backend answers, and waits for the grant.
func (a *acquisition) submit(ctx context.Context, at *attempt) (*Guard, error) {
	returned := false
	defer func() {
		a.endTurn()
		if !returned { // a hook of the backend's client or the caller's context panicked
			a.panicked(at.guard.claim)
		}
	}()
	got, err := a.askAndWait(ctx, at)
	returned = true
	return got, err
}

func (a *acquisition) panicked(cl *claim) {
	a.client.mu.Lock()
	cl.unanswered = true
	a.client.mu.Unlock()
	_ = a.abandon(cl, nil)
}

func (a *acquisition) askAndWait(ctx context.Context, at *attempt) (*Guard, error) {
	for g := at.guard; ; at.made, at.left, at.caller = false, false, nil {
		if !at.made {
			a.ask(ctx, at)
		}
		err := at.err
		if !hadNoRoom(err) {
			a.endTurn()
		}
		if err == nil {
			err = a.awaitGrant(ctx, g, at.answer)
			if err == nil && ctx.Err() != nil { // the caller's context ended before the grant arrived
				err = ctxError(ctx)
			}
			if err != nil {
				return nil, a.abandon(g.claim, err)
			}
			return g, nil
		}
		switch {
		case driver.ClassOf(err) == driver.Fatal:
			return nil, a.abandon(g.claim, a.outcome(g.claim, err))
		case hadNoRoom(err):
			if err := a.awaitTurn(ctx, g.claim.key, err); err != nil {
				return nil, a.abandon(g.claim, a.outcome(g.claim, err))
			}
			continue
		case errors.Is(err, sharedtimeout.ErrAttemptTimeout), at.left:
			continue
		case ctx.Err() == nil:
			a.client.logRetry(g.claim.key, a.failures+1, err)
		}
		if err := a.backOff(ctx, err); err != nil {
			return nil, a.abandon(g.claim, a.outcome(g.claim, err))
		}
	}
}

// outcome adds ErrUnknownOutcome if an attempt of the call was not answered.
func (a *acquisition) outcome(cl *claim, err error) error {
	if cl.unanswered || a.earlierUnknown {
		return fmt.Errorf("%w: %w", ErrUnknownOutcome, mayBeStored(err))
	}
	return err
}

// register adds a claim before it is submitted: the push of its grant may precede the answer.
func (a *acquisition) register(key string) *Guard {
	c, s := a.client, &a.settings
	g := newGuard(claim{
		client: c, key: key, ttl: s.ttl, noRenew: s.noRenew, ownLease: s.ownLease, mode: s.mode, limit: int32(s.limit), heapIndex: -1, renewAt: never, lease: s.ttl,
		asyncUnlock: s.asyncUnlock && c.caps.Remote,
	})
	cl := g.claim
	if s.info.Owner != c.info.Owner || s.margin+s.minHold+s.maxHold > 0 {
		cl.extras = &extras{s.info.Owner, s.margin, s.minHold, s.maxHold}
	}
	c.mu.Lock()
	cl.id = c.ids.next()
	a.id = cl.id
	c.claims.add(cl)
	if a.progress != nil {
		*a.progress = progress{claim: cl, earlierUnknown: a.earlierUnknown}
	}
	c.mu.Unlock()
	s.submitted = cl.id
	return g
}

// awaitGrant waits if the claim is queued.
func (a *acquisition) awaitGrant(ctx context.Context, g *Guard, an answer) error {
	switch {
	case an == whenClosed:
		return ErrClosed
	case an == accepted:
		return nil
	case an == stored && a.settings.waits():
		return a.await(ctx, g)
	case an == stored:
		return fmt.Errorf("%w: the answer came after the lease, or after the lock was taken away", ErrUnknownOutcome)
	case a.settings.waits():
		return errPlaceLost
	}
	return ErrLockHeldByOther
}

func (a *acquisition) await(ctx context.Context, g *Guard) error {
	c := a.client
	var timeUp <-chan time.Time
	if a.deadline != never {
		t := time.NewTimer(time.Duration(a.deadline - c.now()))
		defer t.Stop()
		timeUp = t.C
	}
	changed := g.claim.wait.changed
	if a.progress == nil { // otherwise each local waiter is counted
		c.measureWaiting(1)
		defer c.measureWaiting(-1)
	}
	c.findHolderLater(ctx, g.claim.key, &a.settings)
	for {
		select {
		case <-changed:
			if ended, err := a.checkWait(g.claim); ended {
				if err == nil {
					c.measureHandOff()
				}
				return err
			}
		case <-ctx.Done():
			return leaveError(ctxError(ctx), a.pendingError(g.claim))
		case <-timeUp:
			return leaveError(nil, a.pendingError(g.claim))
		case <-c.closing.Done():
			return ErrClosed
		}
	}
}

// pendingError returns why it is not known that the claim waits for a holder, or nil.
func (a *acquisition) pendingError(cl *claim) error {
	a.client.mu.Lock()
	defer a.client.unlock()
	return cl.queuedError()
}

// checkWait reports whether the wait has ended, and with which error.
func (a *acquisition) checkWait(cl *claim) (bool, error) {
	c := a.client
	c.mu.Lock()
	defer c.unlockCall()
	switch {
	case c.closed:
		return true, ErrClosed
	case cl.phase == ended:
		return true, errPlaceLost
	case cl.phase == granted:
		return c.accept(cl, c.now()), nil
	case c.cfg.MaxRetries > 0 && int(cl.failures) > c.cfg.MaxRetries:
		return true, fmt.Errorf("%w: after %d attempts: %w", ErrUnknownOutcome, cl.failures, mayBeStored(cl.wait.err))
	}
	return false, nil
}

// abandon releases a claim in any phase, even if it is granted meanwhile. It returns err.
func (a *acquisition) abandon(cl *claim, err error) error {
	c := a.client
	c.mu.Lock()
	stored := cl.unanswered || (cl.phase != ended && cl.phase != submitting)
	if cl.phase != ended {
		c.finish(cl, nil)
	}
	var unwanted *claim
	if stored {
		unwanted = c.cleanUpUnwanted(cl)
	}
	c.unlock()
	c.withdraw(unwanted)
	return err
}

// backOff pauses after a backend error. It returns an error if there is no next attempt.
func (a *acquisition) backOff(ctx context.Context, cause error) error {
	c := a.client
	a.failures++
	if c.closing.Err() != nil {
		return ErrClosed
	}
	if !a.settings.waits() || (c.cfg.MaxRetries > 0 && a.failures > c.cfg.MaxRetries) {
		if ctx.Err() == nil {
			return cause
		}
	}
	pause := int64(c.pause(a.id, a.failures-1))
	t := time.NewTimer(time.Duration(min(pause, max(a.deadline-c.now(), 0))))
	defer t.Stop()
	select {
	case <-ctx.Done():
		return fmt.Errorf("%w (last error: %w)", ctxError(ctx), a.preferCause(cause))
	case <-c.closing.Done():
		return ErrClosed
	case <-t.C:
		if c.now() >= a.deadline {
			return cause
		}
		return nil
	}
}
