package dlock

import "context"

// startAcquire starts to acquire a claim if there are waiters and no claim is being acquired or
// held. It runs under mu.
func (h *handoff) startAcquire() {
	if h.mustAcquire() {
		h.client.workers.Go(h.acquire)
	}
}

// mustAcquire reports whether the caller must acquire a claim, and prepares that.
func (h *handoff) mustAcquire() bool {
	c := h.client
	if c.closed {
		h.fail(ErrClosed)
	}
	switch {
	case h.inTurn || h.acquiring:
		return false
	case len(h.waiters) == 0:
		delete(c.handoffs, h.name)
		return false
	}
	h.acquiring, h.canceled, h.progress, h.acquireDone = true, false, progress{}, make(chan struct{})
	h.settings.tokens = 1 + min(c.cfg.LocalBatch, max(2*len(h.waiters), minReserve))
	return true
}

// attempt makes the first attempt of an acquisition, in the goroutine of the first waiter. If the backend grants the lock at
// once, as it usually does if no other goroutine waits, no goroutine needs to be started and awaited. If the caller's context or its
// WithWait ends meanwhile, attempt removes the waiter and returns left and the error of the call.
func (h *handoff) attempt(ctx context.Context, s *lockSettings, w *localWaiter) (left bool, err error) {
	c := h.client
	if h.name.asyncUnlock && c.late == nil { // awaitReleases may wait for longer than the caller
		c.workers.Go(h.acquire)
		return false, nil
	}
	a := &acquisition{client: c, settings: h.settings, progress: &h.progress, started: c.now(), deadline: c.waitDeadline(s)}
	at, returned := &attempt{guard: a.register(h.name.key), caller: ctx}, false
	defer func() {
		if !returned { // a hook of the backend's client or the context of the caller panicked; the others begin again
			a.panicked(at.guard.claim)
			c.mu.Lock()
			h.canceled = true
			c.mu.Unlock()
			h.finishAcquire(nil, errNoAnswer)
		}
	}()
	a.ask(c.closing, at) //nolint:contextcheck // the acquisition may outlast the call
	switch {
	case !at.left:
	case ctx.Err() != nil:
		err = ctxError(ctx)
	case contextEnded(ctx): // its timer has not fired yet
		err = context.DeadlineExceeded
	}
	returned = true
	switch {
	case at.left:
		_, done, unresolved := h.remove(w)
		err = leaveError(err, unresolved)
		if done != nil { // nobody else waits
			h.finishAcquire(nil, a.abandon(at.guard.claim, err))
			return true, err
		}
	case at.err == nil && at.answer == accepted:
		h.finishAcquire(at.guard, nil)
		return false, nil
	}
	a.deadline, left = never, at.left
	c.calls.Add(1)
	c.workers.Go((&begun{h, a, at}).acquire) // a and at are its own from here
	return left, err
}

// acquire acquires a claim.
func (h *handoff) acquire() { h.acquireClaim(nil) }

// A begun acquisition is one of which an attempt was already made.
type begun struct {
	handoff     *handoff
	acquisition *acquisition
	attempt     *attempt
}

// acquire continues with the attempt.
func (b *begun) acquire() {
	defer b.handoff.client.endCall()
	b.handoff.acquireClaim(b)
}

// acquireClaim acquires a claim, by the acquisition that was begun, if there is one.
func (h *handoff) acquireClaim(b *begun) {
	c := h.client
	ctx, cancel := context.WithCancel(c.closing)
	defer cancel()
	c.mu.Lock()
	h.cancelAcquire = cancel
	if h.canceled {
		cancel()
	}
	c.mu.Unlock()
	h.finishAcquire(h.run(ctx, b))
}

// run acquires a claim for the waiters. If a hook of the backend's client panics, no caller could recover it.
func (h *handoff) run(ctx context.Context, b *begun) (g *Guard, err error) {
	defer recoverHook(&err)
	if b == nil {
		return h.client.acquireOwnClaim(ctx, h.name.key, &h.settings, &h.progress)
	}
	return b.acquisition.run(ctx, h.name.key, b.attempt)
}

// finishAcquire ends an acquisition.
func (h *handoff) finishAcquire(g *Guard, err error) {
	c := h.client
	c.mu.Lock()
	done := h.acquireDone
	unwanted := h.acquired(g, err)
	h.startAcquire()
	c.unlock()
	c.withdraw(unwanted)
	close(done)
}

// acquired records the result of an acquisition. It runs under mu, and returns a claim that the
// caller must withdraw after unlock.
func (h *handoff) acquired(g *Guard, err error) (unwanted *claim) {
	c, canceled := h.client, h.canceled
	h.acquiring, h.cancelAcquire = false, nil
	switch {
	case err != nil && canceled: // startAcquire acquires again for waiters that have joined since
	case err != nil && c.closed:
		h.fail(ErrClosed)
	case err != nil:
		h.fail(err)
	case !g.holds(): // lost or closed before a waiter received it
	case len(h.waiters) == 0:
		c.finish(g.claim, nil)
		c.measureHold(g, nil)
		unwanted = c.cleanUpUnwanted(g.claim)
	default:
		g.claim.handoff, h.inTurn, h.releasedAt = h, true, 0
		h.handoffsLeft, h.earlierWaiters, h.turnEnds = h.settings.tokens-1, len(h.waiters)-1, after(c.now(), turnLength)
		h.deliver(g, false)
	}
	return unwanted
}
