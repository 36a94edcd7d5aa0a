package dlock

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// Acquire waits for key until ctx ends and returns a Guard for it. The context
// bounds the wait only; the hold ends with Unlock. Goroutines of one Client
// contend with each other as with anybody else.
//
// If ctx carries a Guard of the same key, waiting would never end: the error is
// ErrLockAlreadyHeld.
func (c *Client) Acquire(ctx context.Context, key string, opts ...LockOption) (*Guard, error) {
	return c.guarded(ctx, "acquire", key, opts)
}

// TryAcquire returns a Guard if key is free. If it is taken the error is
// ErrLockHeldByOther and, where the backend can tell, says who has it, at the
// price of a second call; TryLock does without.
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

// acquire is seek, observed. The user's logger, meter and tracer run before and after
// it: a call that they hold up does not hold up Close.
func (c *Client) acquire(ctx context.Context, key string, s *lockSettings) (*Guard, error) {
	if c.unobserved() {
		return c.seek(ctx, key, s)
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
	return g, err
}

// seek gets a lock, in a queue of this Client or alone.
func (c *Client) seek(ctx context.Context, key string, s *lockSettings) (*Guard, error) {
	if c.cfg.LocalBatch > 0 && s.sharesClaim() {
		return c.join(ctx, key, s)
	}
	return c.seekAlone(ctx, key, s, nil)
}

// seekAlone files claims until one is granted. Usually the first is; only when it
// loses its place another follows, at the end of the queue.
func (c *Client) seekAlone(ctx context.Context, key string, s *lockSettings, met *progress) (*Guard, error) {
	if ctx.Err() != nil {
		return nil, ctxError(ctx)
	}
	if err := c.enter(); err != nil {
		return nil, err
	}
	defer c.leave()
	if !s.waits() { // one that waits has its turn when the one before it has left
		if err := c.awaitDepartures(ctx, key); err != nil {
			return nil, err
		}
	}
	a := acquisition{client: c, settings: *s, met: met, started: c.now(), deadline: never}
	if s.bounded && s.wait > 0 {
		a.deadline = after(a.started, s.wait)
	}
	defer func() { s.filed = a.settings.filed }()
	for {
		g, err := a.file(ctx, key)
		if !errors.Is(err, errPlaceLost) {
			return g, err
		}
		if err := a.backOff(ctx, err); err != nil {
			return nil, a.lastPlace(err)
		}
	}
}

// An acquisition is one call that wants a key.
type acquisition struct {
	client   *Client
	settings lockSettings
	met      *progress // nil unless somebody else waits for it
	started  int64
	deadline int64  // of WithWait
	failures int    // in a row
	id       string // of the last claim
	cause    error  // of the last attempt whose failure had one
	doubt    bool   // the place that was lost last may never have been one
	sends    int
}

// file files one claim, asking again with the same ID until the backend
// answers, and waits for the grant.
func (a *acquisition) file(ctx context.Context, key string) (*Guard, error) {
	g := a.register(key)
	for {
		st, sent, err := a.send(ctx, g.claim)
		if err == nil {
			a.note(false, nil)
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
		case errors.Is(err, driver.ErrHasty):
			continue
		case ctx.Err() == nil:
			a.client.logTrouble(key, a.failures+1, err)
		}
		if err := a.backOff(ctx, err); err != nil {
			return nil, a.abandon(g.claim, a.outcome(g.claim, err))
		}
	}
}

// answered takes in the answer to an attempt. A claim that is not there after an attempt without
// an answer is no progress: a driver that must not use its ID again says so without asking.
func (a *acquisition) answered(ctx context.Context, g *Guard, st driver.State, s sent) error {
	if st.Phase != driver.Gone || !g.claim.unsettled {
		a.failures = 0
	}
	err := a.placed(ctx, g, st, s)
	a.doubt = errors.Is(err, errPlaceLost) && g.claim.unsettled
	return err
}

// outcome says that a claim may be stored, if any attempt was not answered.
func (a *acquisition) outcome(cl *claim, err error) error {
	if cl.unsettled {
		return fmt.Errorf("%w: %w", ErrUnknownOutcome, mayBeStored(err))
	}
	return err
}

// unanswered records a failed attempt. One that may yet arrive has the claim barred
// when it is released, and a push may be of a grant that is long over.
func (a *acquisition) unanswered(cl *claim, s sent, err error, class driver.Class) {
	a.note(false, err)
	if class != driver.Ambiguous {
		return
	}
	a.client.mu.Lock()
	defer a.client.mu.Unlock()
	cl.unsettled, cl.pushed = true, false
	a.client.mayArrive(cl, s)
}

// register makes a claim known before it is filed: the push of its grant may
// beat the answer.
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
		*a.met = progress{claim: cl}
	}
	c.mu.Unlock()
	s.filed = cl.id
	return g
}

// attemptBound is the longest that one attempt to file may take.
const attemptBound = 2 * time.Second

func (a *acquisition) send(ctx context.Context, cl *claim) (driver.State, sent, error) {
	c, s := a.client, &a.settings
	cctx, bound, cancel := a.callContext(ctx)
	defer cancel()
	if a.met != nil {
		a.note(true, a.met.err)
	}
	left := sent{at: a.started, slept: c.sleptSoFar(), ttl: s.ttl}
	if a.sends++; a.sends > 1 {
		left.at = c.now()
	}
	st, err := c.store.Acquire(cctx, driver.Request{
		Ref:  driver.Ref{Key: cl.key, ID: cl.id, TTL: s.ttl},
		Mode: s.mode, Limit: s.limit, Wait: s.waits(), Fixed: s.noRenew, Fences: s.fences, Info: s.info,
	})
	if err == nil && st.Phase == driver.Unknown {
		err = errNoAnswer
	}
	over := err != nil && isOver(ctx) // the driver may have noticed before ctx does
	switch {
	case err == nil:
	case over:
	case cctx.Err() == nil:
		a.record(err)
	case c.closing.Err() != nil && driver.ClassOf(err) == driver.Ambiguous:
		err = ErrClosed
	default:
		err = a.cutShort(err, bound)
	}
	if err != nil && !over {
		err = notCallers(err)
	}
	return st, left, err
}

// callContext bounds one attempt. What is left of WithWait is another time for each
// call, and so is never shared.
func (a *acquisition) callContext(ctx context.Context) (context.Context, time.Duration, func()) {
	c, bound := a.client, min(a.settings.ttl, attemptBound)
	if a.deadline != never {
		if left := time.Duration(max(a.deadline-c.now(), 0)); left < bound {
			cctx, cancel := c.ownContext(ctx, left)
			return cctx, left, cancel
		}
	}
	cctx, cancel := c.callContext(ctx, bound)
	return cctx, bound, cancel
}

// placed takes in the first answer, and waits if it must.
func (a *acquisition) placed(ctx context.Context, g *Guard, st driver.State, s sent) error {
	c, cl := a.client, g.claim
	c.mu.Lock()
	now := c.now()
	stays := c.answered(cl, st, s, now)
	closed := c.closed
	taken := !closed && cl.phase == granted && c.take(cl, now)
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

// await waits until the claim is granted, or something ends the wait.
func (a *acquisition) await(ctx context.Context, g *Guard) error {
	c := a.client
	var timeUp <-chan time.Time
	if a.deadline != never {
		t := time.NewTimer(time.Duration(a.deadline - c.now()))
		defer t.Stop()
		timeUp = t.C
	}
	changed := g.claim.wait.changed
	if a.met == nil { // else those who wait for it are counted
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

// timeUp is the error of a wait that was long enough: somebody else holds the key, as
// far as the backend has answered.
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
		return c.take(cl, c.now()), nil
	case c.cfg.MaxRetries > 0 && int(cl.failures) > c.cfg.MaxRetries:
		return true, fmt.Errorf("%w: after %d attempts: %w", ErrUnknownOutcome, cl.failures, mayBeStored(cl.wait.err))
	}
	return false, nil
}

// abandon takes a claim back, whatever state it is in: a grant that came together with a
// cancellation too. It returns err.
func (a *acquisition) abandon(cl *claim, err error) error {
	c := a.client
	c.mu.Lock()
	stored := cl.unsettled || (cl.phase != ended && cl.phase != filing)
	if cl.phase != ended {
		c.finish(cl, nil)
	}
	var unwanted *claim
	if stored {
		unwanted = c.settleUnwanted(cl)
	}
	c.unlock()
	c.withdraw(unwanted)
	return err
}

// backOff pauses after a backend error. It returns why there is no next attempt.
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
