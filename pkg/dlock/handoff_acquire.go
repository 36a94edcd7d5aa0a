package dlock

import "context"

// startAcquire starts to acquire a claim if there are waiters and no claim is being acquired or
// held. It runs under mu.
func (h *handoff) startAcquire() {
	if h.mustAcquire() {
		h.client.workers.Go(func() { h.acquire(nil, nil) })
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
// once, as it usually does if no other goroutine waits, no goroutine needs to be started and awaited.
func (h *handoff) attempt(ctx context.Context, s *lockSettings) {
	c := h.client
	if h.name.asyncUnlock && c.late == nil { // awaitReleases may wait for longer than the caller
		c.workers.Go(func() { h.acquire(nil, nil) })
		return
	}
	a := &acquisition{client: c, settings: h.settings, progress: &h.progress, started: c.now(), deadline: c.waitDeadline(s)}
	at, returned := &attempt{guard: a.register(h.name.key)}, false
	defer func() {
		if !returned { // a hook of the backend's client or the context of the caller panicked; the others begin again
			a.panicked(at.guard.claim)
			c.mu.Lock()
			h.canceled = true
			c.mu.Unlock()
			h.finishAcquire(nil, errNoAnswer)
		}
	}()
	a.ask(c.closing, ctx, at)
	returned = true
	if at.err == nil && at.answer == accepted {
		h.finishAcquire(at.guard, nil)
		return
	}
	a.deadline = never
	c.calls.Add(1)
	c.workers.Go(func() {
		defer c.endCall()
		h.acquire(a, at)
	})
}

// acquire acquires a claim, with an attempt that was already made, or from the beginning.
func (h *handoff) acquire(a *acquisition, at *attempt) {
	c := h.client
	ctx, cancel := context.WithCancel(c.closing)
	defer cancel()
	c.mu.Lock()
	h.cancelAcquire = cancel
	if h.canceled {
		cancel()
	}
	c.mu.Unlock()
	h.finishAcquire(h.acquireClaim(ctx, a, at))
}

// acquireClaim acquires a claim for the waiters. If a hook of the backend's client panics, no caller could recover it.
func (h *handoff) acquireClaim(ctx context.Context, a *acquisition, at *attempt) (g *Guard, err error) {
	defer recoverHook(&err)
	if a == nil {
		return h.client.acquireOwnClaim(ctx, h.name.key, &h.settings, &h.progress)
	}
	return a.run(ctx, h.name.key, at)
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
