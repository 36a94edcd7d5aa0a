package dlock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// A handoff implements Config.LocalBatch. The goroutines of this Client that wait for one
// key form one local queue, and one claim is submitted for all of them. A holder hands the
// lock to the next waiter without a call to the backend, until the turn ends. The claim is
// then released, and the claim of the next turn is submitted at the end of the backend's
// queue.
//
// The claim belongs to the handoff, not to the first call: if that call gives up, the others
// keep their place. The first call makes the first attempt itself; a goroutine continues if that does not lead to the lock.
type handoff struct {
	client   *Client
	name     handoffName
	settings lockSettings

	// Under client.mu.
	waiters        []*localWaiter
	inTurn         bool               // a claim of this handoff is held, or its release is not sent yet
	releasedAt     int64              // when the release of the claim was sent, 0 if it was not
	handoffsLeft   int                // how many handoffs are left in this turn
	earlierWaiters int                // how many of these are for waiters from before the turn
	turnEnds       int64              // when the turn ends for waiters that came during it
	previous       *Guard             // the previous holder; its context may not have ended yet
	acquiring      bool               // a claim is being acquired
	canceled       bool               // the acquisition was canceled because no waiter was left
	cancelAcquire  context.CancelFunc // cancels the acquisition; nil before it has begun
	acquireDone    chan struct{}      // closed when the acquisition has ended
	progress       progress           // the progress of the acquisition
}

// A handoffName identifies a handoff by the settings that must be equal for calls to share a claim.
type handoffName struct {
	key         string
	ttl, margin time.Duration
	info        driver.Info
	asyncUnlock bool
}

// A localWaiter is a call that waits in a local queue.
type localWaiter struct {
	result    chan localResult // buffered by one
	since     int64
	submitted string // the ID of the claim, when the call gave up
}

// A delivery is a result that unlock sends to a waiter.
type delivery struct {
	to *localWaiter
	localResult
}

type localResult struct {
	guard *Guard
	err   error
	local bool // handed over by another goroutine, not granted by the backend
}

// turnLength limits how long a lock is handed to waiters that came during the turn, because
// other processes wait meanwhile. The limit does not apply to waiters from before the turn,
// because claims of their own would also have been in the backend's queue.
const turnLength = 5 * time.Millisecond

// minReserve is the least number of handoffs for which a claim reserves tokens, as far as LocalBatch
// allows. More are reserved only if more calls wait: unused tokens move the counter of a backend ahead
// of the time, and some backends rely on the time if the counter is lost.
const minReserve = 8

// sharesClaim reports whether a call may share a claim: it waits for an exclusive lock, without
// special options.
func (s *lockSettings) sharesClaim() bool {
	return s.waits() && s.mode == driver.Exclusive && !s.noRenew && !s.ownLease && s.minHold == 0 && s.maxHold == 0
}

// acquireLocal waits for the lock in the local queue.
func (c *Client) acquireLocal(ctx context.Context, key string, s *lockSettings) (*Guard, error) {
	if ctx.Err() != nil {
		return nil, ctxError(ctx)
	}
	if err := c.beginCall(); err != nil {
		return nil, err
	}
	defer c.endCall()
	name := handoffName{key, s.ttl, s.margin, s.info, s.asyncUnlock}
	name.info.Trace = ""
	w := &localWaiter{result: make(chan localResult, 1), since: c.now()}
	h, isFirst := c.joinQueue(name, s, w)
	got, returned := localResult{}, false
	defer func() {
		switch { // a hook of the backend's client or the context of the caller panicked
		case returned:
		case got.guard != nil:
			h.passOnOrRelease(got.guard)
		default:
			_ = h.leave(w)
		}
	}()
	var g *Guard
	err, left := error(nil), false
	if isFirst {
		left, err = h.attempt(ctx, s, w)
	}
	if !left {
		g, err = h.await(ctx, w, s, &got)
	}
	returned, s.submitted = true, w.submitted
	return g, err
}

// joinQueue adds a waiter to the queue of its handoff, and creates the handoff if necessary. It reports whether
// the caller must begin to acquire a claim.
func (c *Client) joinQueue(name handoffName, s *lockSettings, w *localWaiter) (h *handoff, isFirst bool) {
	c.mu.Lock()
	defer c.unlock()
	h = c.handoffs[name]
	if h == nil {
		h = &handoff{client: c, name: name, settings: lockSettings{
			ttl: s.ttl, margin: s.margin, info: name.info, asyncUnlock: s.asyncUnlock,
		}}
		if c.handoffs == nil {
			c.handoffs = map[handoffName]*handoff{}
		}
		c.handoffs[name] = h
	}
	h.waiters = append(h.waiters, w)
	return h, h.mustAcquire()
}

// await waits for a result and stores it in got.
func (h *handoff) await(ctx context.Context, w *localWaiter, s *lockSettings, got *localResult) (*Guard, error) {
	c := h.client
	select {
	case *got = <-w.result:
		return h.take(ctx, got)
	default:
	}
	var timeUp <-chan time.Time
	if s.hasWait {
		t := time.NewTimer(time.Duration(after(w.since, s.wait) - c.now()))
		defer t.Stop()
		timeUp = t.C
	}
	c.measureWaiting(1)
	defer c.measureWaiting(-1)
	var err error
	select {
	case *got = <-w.result:
		return h.take(ctx, got)
	case <-ctx.Done():
		err = ctxError(ctx)
	case <-timeUp:
	case <-c.closing.Done():
		err = ErrClosed
	}
	return nil, leaveError(err, h.leave(w))
}

// leaveError returns the error of a waiter that gives up: err is the end of its context or of the Client, or nil at the end of its
// WithWait, and unresolved the error of leave.
func leaveError(err, unresolved error) error {
	switch {
	case unresolved == nil && err == nil:
		return ErrLockHeldByOther
	case unresolved == nil, errors.Is(err, ErrClosed):
		return err
	case err == nil:
		return unresolved
	}
	return fmt.Errorf("%w: %w", err, unresolved)
}

// take returns what a waiter has received.
func (h *handoff) take(ctx context.Context, got *localResult) (*Guard, error) {
	if got.guard != nil && ctx.Err() != nil { // the caller's context ended first
		h.passOnOrRelease(got.guard)
		return nil, ctxError(ctx)
	}
	if got.local {
		h.client.measureHandOff()
	}
	return got.guard, got.err
}

// leave removes a waiter that gives up from the queue. It returns the error for which the claim
// is not answered, or with which the acquisition has just failed, if there is one.
func (h *handoff) leave(w *localWaiter) error {
	waited, done, unresolved := h.remove(w)
	if done != nil { // the claim is withdrawn before the call returns; see withdraw
		waitFor(done, withdrawTimeout)
	}
	if waited {
		return unresolved
	}
	got := <-w.result // a waiter that is not in the queue gets a result
	if got.guard != nil {
		h.passOnOrRelease(got.guard)
	}
	return got.err
}

// waitFor waits until done is closed, or the timeout has passed.
func waitFor(done <-chan struct{}, timeout time.Duration) {
	t := time.NewTimer(timeout)
	defer t.Stop()
	select {
	case <-done:
	case <-t.C:
	}
}

// remove removes a waiter, and reports whether it was in the queue. If it was the last, the
// acquisition is canceled; done is closed when that has ended.
func (h *handoff) remove(w *localWaiter) (waited bool, done <-chan struct{}, unresolved error) {
	c := h.client
	c.mu.Lock()
	defer c.unlock()
	i := slices.Index(h.waiters, w)
	if i < 0 {
		return false, nil, nil
	}
	h.waiters = slices.Delete(h.waiters, i, i+1)
	if cl := h.progress.claim; cl != nil && !h.inTurn && len(h.waiters) == 0 { // otherwise it stands for the others
		w.submitted = cl.id
	}
	switch {
	case !h.inTurn:
		unresolved = h.progress.pendingError()
	case h.releasedAt != 0 && h.releasedAt <= w.since: // this Client has not held the lock since then
		unresolved = fmt.Errorf("%w: %w to its release", ErrUnknownOutcome, errNoAnswer)
	}
	if len(h.waiters) == 0 && h.acquiring {
		h.canceled, done = true, h.acquireDone
		if h.cancelAcquire != nil {
			h.cancelAcquire()
		}
	}
	return true, done, unresolved
}

// passOnOrRelease hands a lock whose waiter has left to the next waiter, or releases it.
func (h *handoff) passOnOrRelease(g *Guard) {
	c := h.client
	c.mu.Lock()
	var unwanted *claim
	if g.holds() {
		c.measureHold(g, nil)
		if !h.passOn(g, c.now()) {
			c.finish(g.claim, nil)
			unwanted = c.cleanUpUnwanted(g.claim)
			h.endTurn()
		}
	}
	c.unlock()
	c.withdraw(unwanted)
}

// deliver gives a Guard to the first waiter.
func (h *handoff) deliver(g *Guard, local bool) {
	w := h.waiters[0]
	h.waiters = slices.Delete(h.waiters, 0, 1)
	h.client.deliveries = append(h.client.deliveries, delivery{w, localResult{guard: g, local: local}})
}

func (h *handoff) fail(err error) {
	for _, w := range h.waiters {
		h.client.deliveries = append(h.client.deliveries, delivery{w, localResult{err: err}})
	}
	h.waiters = nil
}

// endTurn ends the turn of a claim that may be handed on. It runs under mu.
func (cl *claim) endTurn() {
	if cl.handoff != nil && !cl.turnEnded {
		cl.turnEnded = true
		cl.handoff.endTurn()
	}
}

// endTurn ends a turn after its claim was released or lost. It runs under mu.
func (h *handoff) endTurn() {
	h.inTurn = false
	h.startAcquire()
}

// passOn hands the lock to the next waiter if the turn allows it and the last renewal did not
// fail. The claim keeps its deadline and its calls in flight; only the owner changes, with its
// token and its context. It runs under mu.
func (h *handoff) passOn(g *Guard, now int64) bool {
	c, cl := h.client, g.claim
	switch {
	case h.handoffsLeft == 0 || len(h.waiters) == 0 || c.closed:
		return false
	case h.earlierWaiters == 0 && now >= h.turnEnds:
		return false
	case cl.failures > 0 || cl.ttl != h.name.ttl || cl.expired(now):
		return false
	}
	h.handoffsLeft--
	h.earlierWaiters = max(h.earlierWaiters-1, 0)
	next := g.successor()
	g.end(nil)
	cl.guard, h.previous = next, g
	if cl.wait != nil { // an Extend of the previous owner
		cl.wait.signal()
		cl.wait = nil
	}
	cl.asyncUnlock = h.name.asyncUnlock && c.caps.Remote // AcquireAll may have set it
	next.begin(g.token+1, now)
	h.deliver(next, true)
	return true
}
