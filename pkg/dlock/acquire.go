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
	return c.guarded(ctx, "acquire", key, opts)
}

// TryAcquire returns a Guard if key is free. Otherwise it returns ErrLockHeldByOther.
// Where the backend can tell, the error names the holder, which costs a second
// call; TryLock does not make that call.
func (c *Client) TryAcquire(ctx context.Context, key string, opts ...LockOption) (*Guard, error) {
	return c.guarded(ctx, "try acquire", key, append(opts[:len(opts):len(opts)], WithWait(0)))
}

func (c *Client) guarded(ctx context.Context, op, key string, opts []LockOption) (*Guard, error) {
	s, err := c.check(ctx, key, opts)
	if err != nil {
		return nil, fail(op, key, err)
	}
	if c.holding(ctx, key) != nil {
		return nil, fail(op, key, fmt.Errorf("%w: the context carries its Guard or its owner", ErrLockAlreadyHeld))
	}
	g, err := c.acquire(ctx, key, &s)
	if err != nil {
		return nil, c.busy(ctx, fail(op, key, err), &s)
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

// acquire is seek with logs, metrics and traces. The user's logger, meter and tracer run
// before and after seek, so that a call that they block does not block Close.
func (c *Client) acquire(ctx context.Context, key string, s *lockSettings) (*Guard, error) {
	if c.unobserved() {
		g, err := c.seek(ctx, key, s)
		return g.withValues(ctx), err
	}
	started := c.now()
	traced, span := c.traceAcquire(ctx, key, s)
	g, err := c.seek(traced, key, s)
	if err == nil {
		c.logAcquired(g, started)
	}
	c.measureAcquire(traced, started, err)
	c.endAcquire(ctx, span, g, err)
	c.reporter.deliver()
	return g.withValues(ctx), err
}

// seek acquires a lock, through the local queue of a handoff or with its own claim.
func (c *Client) seek(ctx context.Context, key string, s *lockSettings) (*Guard, error) {
	if c.cfg.LocalBatch > 0 && s.sharesClaim() {
		return c.join(ctx, key, s)
	}
	return c.seekAlone(ctx, key, s, nil)
}

// seekAlone submits a claim, and another one at the end of the queue if it loses its place.
func (c *Client) seekAlone(ctx context.Context, key string, s *lockSettings, met *progress) (*Guard, error) {
	if ctx.Err() != nil {
		return nil, ctxError(ctx)
	}
	if err := c.enter(); err != nil {
		return nil, err
	}
	defer c.leave()
	if !s.waits() { // a call that waits gets its turn after the claim before it was released
		if err := c.awaitDepartures(ctx, key); err != nil {
			return nil, err
		}
	}
	a := acquisition{client: c, settings: *s, met: met, started: c.now(), deadline: never}
	if s.hasWait && s.wait > 0 {
		a.deadline = after(a.started, s.wait)
	}
	defer func() { s.submitted = a.settings.submitted }()
	for {
		g, err := a.submit(ctx, key)
		if !errors.Is(err, errPlaceLost) {
			return g, err
		}
		if err := a.backOff(ctx, a.placeLost(err)); err != nil {
			return nil, err
		}
	}
}

// An acquisition is one call that acquires a key.
type acquisition struct {
	client   *Client
	settings lockSettings
	met      *progress // nil unless local waiters depend on it
	started  int64
	deadline int64  // of WithWait
	failures int    // in a row
	id       string // of the last claim
	cause    error  // of the last failed attempt that had one
	doubt    bool   // an earlier claim may be stored: its outcome is unknown
	queued   bool   // the last claim was answered and stored
	sends    int
}

// submit submits one claim, with the same ID until the backend answers, and waits for the grant.
func (a *acquisition) submit(ctx context.Context, key string) (*Guard, error) {
	g, returns := a.register(key), false
	defer func() {
		if !returns { // a hook of the backend's client or the caller's context panicked
			a.panicked(g.claim)
		}
	}()
	got, err := a.askAndWait(ctx, g)
	returns = true
	return got, err
}

func (a *acquisition) panicked(cl *claim) {
	a.client.mu.Lock()
	cl.unanswered = true
	a.client.mu.Unlock()
	_ = a.abandon(cl, nil)
}

func (a *acquisition) askAndWait(ctx context.Context, g *Guard) (*Guard, error) {
	for {
		st, sent, err := a.send(ctx, g.claim)
		if err == nil {
			a.recordAttempt(false, nil)
			err = a.answered(ctx, g, st, sent)
			if err == nil && ctx.Err() != nil { // the grant came too late for its caller
				err = ctxError(ctx)
			}
			if err != nil {
				return nil, a.abandon(g.claim, err)
			}
			return g, nil
		}
		class := driver.ClassOf(err)
		a.unanswered(g.claim, sent, err, class)
		switch {
		case class == driver.Fatal:
			return nil, a.abandon(g.claim, a.outcome(g.claim, err))
		case errors.Is(err, sharedtimeout.ErrAttemptTimeout):
			continue
		case ctx.Err() == nil:
			a.client.logTrouble(g.claim.key, a.failures+1, err)
		}
		if err := a.backOff(ctx, err); err != nil {
			return nil, a.abandon(g.claim, a.outcome(g.claim, err))
		}
	}
}

// answered records the answer to an attempt. Gone after an unanswered attempt does not reset the
// failures: a driver that must not reuse an ID answers so without a call to the backend.
func (a *acquisition) answered(ctx context.Context, g *Guard, st driver.State, s sent) error {
	a.queued = st.Phase != driver.Gone
	if a.queued || !g.claim.unanswered {
		a.failures = 0
	} else {
		a.doubt = true
	}
	a.recordAnswer()
	return a.placed(ctx, g, st, s)
}

// outcome adds ErrUnknownOutcome if an attempt of the call was not answered.
func (a *acquisition) outcome(cl *claim, err error) error {
	if cl.unanswered || a.doubt {
		return fmt.Errorf("%w: %w", ErrUnknownOutcome, mayBeStored(err))
	}
	return err
}

// unanswered records a failed attempt. If the attempt may still arrive, the release of the claim
// leaves a tombstone, and a push may report a grant that has already ended.
func (a *acquisition) unanswered(cl *claim, s sent, err error, class driver.Class) {
	a.recordAttempt(false, err)
	if class != driver.Ambiguous {
		return
	}
	a.client.mu.Lock()
	defer a.client.mu.Unlock()
	cl.unanswered, cl.pushed = true, false
	a.client.recordUnanswered(cl, s)
}

// register adds a claim before it is submitted: the push of its grant may precede the answer.
func (a *acquisition) register(key string) *Guard {
	c, s := a.client, &a.settings
	g := newGuard(claim{
		client: c, key: key, ttl: s.ttl, noRenew: s.noRenew, mode: s.mode, limit: int32(s.limit), slot: -1, renewAt: never, span: s.ttl,
	})
	cl := g.claim
	if s.info.Owner != c.info.Owner || s.margin+s.minHold+s.maxHold > 0 {
		cl.extras = &extras{s.info.Owner, s.margin, s.minHold, s.maxHold}
	}
	c.mu.Lock()
	cl.id = c.ids.next()
	a.id = cl.id
	c.claims.add(cl)
	if a.met != nil {
		*a.met = progress{claim: cl, doubt: a.doubt}
	}
	c.mu.Unlock()
	s.submitted = cl.id
	return g
}

func (a *acquisition) send(ctx context.Context, cl *claim) (driver.State, sent, error) {
	c, s := a.client, &a.settings
	cctx, timeout, cancel := a.callContext(ctx)
	defer cancel()
	if a.met != nil {
		a.recordAttempt(true, a.met.err)
	}
	left := sent{at: a.started, slept: c.sleptSoFar(), ttl: s.ttl}
	a.sends++
	if a.sends > 1 {
		left.at = c.now()
	}
	st, err := c.store.Acquire(cctx, driver.Request{
		Ref:  driver.Ref{Key: cl.key, ID: cl.id, TTL: s.ttl},
		Mode: s.mode, Limit: s.limit, Wait: s.waits(), Fixed: s.noRenew, Tokens: s.fences, Info: s.info,
	})
	if err == nil && st.Phase == driver.Unknown {
		err = errNoAnswer
	}
	over := err != nil && isOver(ctx) // the driver may notice the deadline before ctx does
	switch {
	case err == nil, over:
	case cctx.Err() == nil:
		a.record(err)
	case c.closing.Err() != nil && driver.ClassOf(err) == driver.Ambiguous:
		err = ErrClosed
	default:
		err = a.cutShort(err, timeout)
	}
	if err != nil && !over {
		err = notCallers(err)
	}
	return st, left, err
}

// placed records the first answer, and waits if the claim is queued.
func (a *acquisition) placed(ctx context.Context, g *Guard, st driver.State, s sent) error {
	c, cl := a.client, g.claim
	c.mu.Lock()
	now := c.now()
	stays := c.answered(cl, st, s, now)
	closed := c.closed
	taken := !closed && cl.phase == granted && c.accept(cl, now)
	if stays && !taken {
		cl.wait = &wait{changed: make(chan struct{}, 1)}
	}
	c.unlockCall()
	switch {
	case closed:
		return ErrClosed
	case taken:
		return nil
	case stays && a.settings.waits():
		return a.await(ctx, g)
	case stays:
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
	if a.met == nil { // otherwise its local waiters are counted
		c.measureWaiting(1)
		defer c.measureWaiting(-1)
	}
	c.lookAhead(ctx, g.claim.key, &a.settings)
	for {
		select {
		case <-changed:
			if over, err := a.look(g.claim); over {
				if err == nil {
					c.measureHandOff()
				}
				return err
			}
		case <-ctx.Done():
			return ctxError(ctx)
		case <-timeUp:
			return a.timeUp(g.claim)
		case <-c.closing.Done():
			return ErrClosed
		}
	}
}

// timeUp returns the error of a wait that reached its WithWait limit.
func (a *acquisition) timeUp(cl *claim) error {
	a.client.mu.Lock()
	defer a.client.unlock()
	if err := cl.silence(); err != nil {
		return err
	}
	return ErrLockHeldByOther
}

// look reports whether the wait is over.
func (a *acquisition) look(cl *claim) (bool, error) {
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

// abandon releases a claim in any phase, also if it is granted meanwhile. It returns err.
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
		return fmt.Errorf("%w (last error: %w)", ctxError(ctx), a.better(cause))
	case <-c.closing.Done():
		return ErrClosed
	case <-t.C:
		if c.now() >= a.deadline {
			return cause
		}
		return nil
	}
}
