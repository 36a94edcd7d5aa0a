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
// keep their place. A goroutine exists only while a claim is sought.
type handoff struct {
	client   *Client
	name     handoffName
	settings lockSettings

	// Under client.mu.
	waiters      []*localWaiter
	turn         bool               // a claim is held, or being released
	givenBack    int64              // when the release of the claim was sent, 0 if it was not
	passes       int                // how many handoffs are left in this turn
	owed         int                // how many of these are for waiters from before the turn
	ends         int64              // when the turn ends for later waiters
	former       *Guard             // the last holder before this one; its context may not have ended yet
	seeking      bool               // a claim is being acquired
	gaveUp       bool               // its acquisition was canceled because no waiter was left
	cancelSearch context.CancelFunc // cancels the acquisition; nil before it has begun
	sought       chan struct{}      // closed when the acquisition has ended
	met          progress           // of the acquisition
}

// A handoffName has the settings that must be equal for calls that share a claim.
type handoffName struct {
	key         string
	ttl, margin time.Duration
	info        driver.Info
}

// A localWaiter is a call that waits in a local queue.
type localWaiter struct {
	got   chan handed // buffered by one
	since int64
}

// A handover is a result that unlock delivers to a waiter.
type handover struct {
	to *localWaiter
	handed
}

type handed struct {
	guard *Guard
	err   error
	local bool // handed over by another goroutine, not granted by the backend
}

// turnLength limits how long a lock is handed to waiters that came during the turn, because
// other processes wait meanwhile. The limit does not apply to waiters from before the turn:
// with their own claims they would also have been served.
const turnLength = 5 * time.Millisecond

// sharesClaim reports whether a call may share its claim: it waits, and for an exclusive lock
// without special options.
func (s *lockSettings) sharesClaim() bool {
	return s.waits() && s.mode == driver.Exclusive && !s.noRenew && s.minHold == 0 && s.maxHold == 0
}

// join waits for the lock in the local queue.
func (c *Client) join(ctx context.Context, key string, s *lockSettings) (*Guard, error) {
	if ctx.Err() != nil {
		return nil, ctxError(ctx)
	}
	if err := c.enter(); err != nil {
		return nil, err
	}
	defer c.leave()
	name := handoffName{key, s.ttl, s.margin, s.info}
	name.info.Trace = ""
	w := &localWaiter{make(chan handed, 1), c.now()}
	h, got := c.lineUp(name, s, w), handed{}
	returns := false
	defer func() {
		switch { // the context of the caller panicked
		case returns:
		case got.guard != nil:
			h.refuse(got.guard)
		default:
			_ = h.leave(w)
		}
	}()
	g, err := h.await(ctx, w, s, &got)
	returns = true
	return g, err
}

// lineUp adds a waiter to the queue of its handoff, and creates the handoff if necessary.
func (c *Client) lineUp(name handoffName, s *lockSettings, w *localWaiter) *handoff {
	c.mu.Lock()
	defer c.unlock()
	h := c.handoffs[name]
	if h == nil {
		h = &handoff{client: c, name: name, settings: lockSettings{
			ttl: s.ttl, margin: s.margin, info: name.info, fences: c.cfg.LocalBatch + 1,
		}}
		if c.handoffs == nil {
			c.handoffs = map[handoffName]*handoff{}
		}
		c.handoffs[name] = h
	}
	h.waiters = append(h.waiters, w)
	h.next()
	return h
}

// await waits for a result, and stores in got what another goroutine handed over.
func (h *handoff) await(ctx context.Context, w *localWaiter, s *lockSettings, got *handed) (*Guard, error) {
	c := h.client
	var timeUp <-chan time.Time
	if s.hasWait {
		t := time.NewTimer(s.wait)
		defer t.Stop()
		timeUp = t.C
	}
	c.measureWaiting(1)
	defer c.measureWaiting(-1)
	var err error
	select {
	case *got = <-w.got:
		if got.guard != nil && ctx.Err() != nil { // it came too late for its caller
			h.refuse(got.guard)
			return nil, ctxError(ctx)
		}
		if got.local {
			c.measureHandOff()
		}
		return got.guard, got.err
	case <-ctx.Done():
		err = ctxError(ctx)
	case <-timeUp:
	case <-c.closing.Done():
		err = ErrClosed
	}
	trouble := h.leave(w)
	switch {
	case trouble == nil && err == nil:
		return nil, ErrLockHeldByOther
	case trouble == nil, errors.Is(err, ErrClosed):
		return nil, err
	case err == nil:
		return nil, trouble
	}
	return nil, fmt.Errorf("%w: %w", err, trouble)
}

// leave removes a waiter that gives up from the queue. It returns the error that keeps the
// claim from being answered, or with which the acquisition has just failed, if there is one.
func (h *handoff) leave(w *localWaiter) error {
	waited, sought, trouble := h.remove(w)
	if sought != nil { // the claim is withdrawn before the call returns; see withdraw
		within(sought, withdrawTimeout)
	}
	if waited {
		return trouble
	}
	got := <-w.got // a waiter that is not in the queue gets a result
	if got.guard != nil {
		h.refuse(got.guard)
	}
	return got.err
}

// within waits until done is closed, or the timeout has passed.
func within(done <-chan struct{}, timeout time.Duration) {
	t := time.NewTimer(timeout)
	defer t.Stop()
	select {
	case <-done:
	case <-t.C:
	}
}

// remove reports whether a waiter was in the queue. If it was the last, the search ends:
// sought is closed then.
func (h *handoff) remove(w *localWaiter) (waited bool, sought <-chan struct{}, trouble error) {
	c := h.client
	c.mu.Lock()
	defer c.unlock()
	i := slices.Index(h.waiters, w)
	if i < 0 {
		return false, nil, nil
	}
	h.waiters = slices.Delete(h.waiters, i, i+1)
	switch {
	case !h.turn:
		trouble = h.met.trouble()
	case h.givenBack != 0 && h.givenBack <= w.since: // not held by this Client since then
		trouble = fmt.Errorf("%w: %w to its release", ErrUnknownOutcome, errNoAnswer)
	}
	if len(h.waiters) == 0 && h.seeking {
		h.gaveUp, sought = true, h.sought
		if h.cancelSearch != nil {
			h.cancelSearch()
		}
	}
	return true, sought, trouble
}

// refuse passes a lock whose waiter has left to the next waiter, or releases it.
func (h *handoff) refuse(g *Guard) {
	c := h.client
	c.mu.Lock()
	var unwanted *claim
	if g.holds() {
		c.measureHold(g, nil)
		if !h.pass(g, c.now()) {
			c.finish(g.claim, nil)
			unwanted = c.cleanUpUnwanted(g.claim)
			h.turnEnded()
		}
	}
	c.unlock()
	c.withdraw(unwanted)
}

// next acquires a claim if there are waiters and none is being acquired or held. It runs
// under mu.
func (h *handoff) next() {
	c := h.client
	if c.closed {
		h.fail(ErrClosed)
	}
	switch {
	case h.turn || h.seeking:
		return
	case len(h.waiters) == 0:
		delete(c.handoffs, h.name)
		return
	}
	h.seeking, h.gaveUp, h.met, h.sought = true, false, progress{}, make(chan struct{})
	c.workers.Go(h.seek)
}

func (h *handoff) seek() {
	c := h.client
	ctx, cancel := context.WithCancel(c.closing)
	defer cancel()
	c.mu.Lock()
	h.cancelSearch = cancel
	if h.gaveUp {
		cancel()
	}
	sought := h.sought
	c.mu.Unlock()
	defer close(sought)
	g, err := c.seekAlone(ctx, h.name.key, &h.settings, &h.met)
	c.mu.Lock()
	unwanted := h.found(g, err)
	h.next()
	c.unlock()
	c.withdraw(unwanted)
}

// found records the result of an acquisition. It runs under mu, and returns a claim that the
// caller must withdraw after unlock.
func (h *handoff) found(g *Guard, err error) (unwanted *claim) {
	c, gaveUp := h.client, h.gaveUp
	h.seeking, h.cancelSearch = false, nil
	switch {
	case err != nil && gaveUp: // next acquires again for waiters that have joined since
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
		g.claim.handoff, h.turn, h.givenBack = h, true, 0
		h.passes, h.owed, h.ends = c.cfg.LocalBatch, len(h.waiters)-1, after(c.now(), turnLength)
		h.hand(g, false)
	}
	return unwanted
}

// hand gives a Guard to the first waiter.
func (h *handoff) hand(g *Guard, local bool) {
	w := h.waiters[0]
	h.waiters = slices.Delete(h.waiters, 0, 1)
	h.client.handovers = append(h.client.handovers, handover{w, handed{guard: g, local: local}})
}

func (h *handoff) fail(err error) {
	for _, w := range h.waiters {
		h.client.handovers = append(h.client.handovers, handover{w, handed{err: err}})
	}
	h.waiters = nil
}

// turnEnded is called when the claim of a turn was released or lost. It runs under mu.
func (h *handoff) turnEnded() {
	h.turn = false
	h.next()
}

// pass hands the lock to the next waiter if the turn allows it and the last renewal did not
// fail. The claim keeps its deadline and its calls in flight; only its owner changes, and with
// it the token and the context. It runs under mu.
func (h *handoff) pass(g *Guard, now int64) bool {
	c, cl := h.client, g.claim
	switch {
	case h.passes == 0 || len(h.waiters) == 0 || c.closed:
		return false
	case h.owed == 0 && now >= h.ends:
		return false
	case cl.failures > 0 || cl.ttl != h.name.ttl || cl.expired(now):
		return false
	}
	h.passes--
	h.owed = max(h.owed-1, 0)
	next := g.successor()
	g.end(nil)
	cl.guard, h.former = next, g
	if cl.wait != nil { // an Extend of the former owner
		cl.wait.signal()
		cl.wait = nil
	}
	next.begin(g.token+1, now)
	h.hand(next, true)
	return true
}
