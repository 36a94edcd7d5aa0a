package dlock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// A handoff is for Config.LocalBatch: the goroutines of this Client that wait for one
// key stand in one local queue, and one claim is filed for all of them. Whoever holds
// the lock hands it to the next without asking the backend, until the turn is over;
// then it goes back, and the next turn is filed at the end of the backend's queue.
//
// The claim belongs to the handoff, not to the call that came first: if that one gives
// up, the others keep their place. A goroutine exists only while a claim is sought.
type handoff struct {
	client   *Client
	name     handoffName
	settings lockSettings

	// Under client.mu.
	waiters   []*localWaiter
	turn      bool               // a claim is held, or being released
	givenBack int64              // when the release of the claim was sent, 0 if it was not
	passes    int                // left in this turn
	owed      int                // of these, for those who waited when the turn began
	ends      int64              // of this turn, for all others
	former    *Guard             // that handed the lock on last; its context may not have ended yet
	seeking   bool               // a claim is being sought
	gaveUp    bool               // it was given up, since nobody waited
	giveUp    context.CancelFunc // ends the search; nil before it has begun
	sought    chan struct{}      // closed when the search has ended
	met       progress           // of the claim that is sought
}

// A handoffName is what must be the same for those who share a claim.
type handoffName struct {
	key         string
	ttl, margin time.Duration
	info        driver.Info
}

// A localWaiter is a call that waits for its turn.
type localWaiter struct {
	got   chan handed // buffered by one
	since int64
}

// A handover is what unlock gives to a waiter.
type handover struct {
	to *localWaiter
	handed
}

type handed struct {
	guard *Guard
	err   error
	local bool // from another goroutine, not from the backend
}

// turnLength is how long a lock is handed on to those who come while it is. Others
// wait meanwhile. Those who waited before it began are served all the same: they would
// have been, had each filed a claim of its own.
const turnLength = 5 * time.Millisecond

// sharesClaim reports whether a call may share its claim: one that waits for a lock of
// the plain kind.
func (s *lockSettings) sharesClaim() bool {
	return s.waits() && s.mode == driver.Exclusive && !s.noRenew && s.minHold == 0 && s.maxHold == 0
}

// join waits in the local queue for the lock.
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
	return c.lineUp(name, s, w).await(ctx, w, s)
}

// lineUp puts a waiter into the queue of its handoff, which begins if there is none.
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

func (h *handoff) await(ctx context.Context, w *localWaiter, s *lockSettings) (*Guard, error) {
	c := h.client
	var timeUp <-chan time.Time
	if s.bounded {
		t := time.NewTimer(s.wait)
		defer t.Stop()
		timeUp = t.C
	}
	c.measureWaiting(1)
	defer c.measureWaiting(-1)
	var err error
	select {
	case got := <-w.got:
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

// leave takes a waiter that gives up out of the queue. It returns what keeps the claim
// from being answered.
func (h *handoff) leave(w *localWaiter) error {
	waited, sought, trouble := h.remove(w)
	if sought != nil { // as any other call that gives up: see withdraw and departures
		within(sought, withdrawBound)
	}
	if waited {
		return trouble
	}
	got := <-w.got // which is not in the queue was handed something, or is about to be
	if got.guard != nil {
		h.refuse(got.guard)
	}
	return nil
}

// within waits until something is done, but not for long.
func within(done <-chan struct{}, bound time.Duration) {
	t := time.NewTimer(bound)
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
	case h.givenBack != 0 && h.givenBack <= w.since: // nobody has held it since
		trouble = fmt.Errorf("%w: %w to its release", ErrUnknownOutcome, errNoAnswer)
	}
	if len(h.waiters) == 0 && h.seeking {
		h.gaveUp, sought = true, h.sought
		if h.giveUp != nil {
			h.giveUp()
		}
	}
	return true, sought, trouble
}

// refuse gives a lock that was handed to a waiter which has left to the next one, or back.
func (h *handoff) refuse(g *Guard) {
	c := h.client
	c.mu.Lock()
	var unwanted *claim
	if g.holds() {
		c.measureHold(g, nil)
		if !h.pass(g, c.now()) {
			c.finish(g.claim, nil)
			unwanted = c.settleUnwanted(g.claim)
			h.turnEnded()
		}
	}
	c.unlock()
	c.withdraw(unwanted)
}

// next seeks a claim if somebody waits and none is sought or held. It runs under mu.
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
	h.giveUp = cancel
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

// found takes in what a search has brought. It runs under mu, and returns a claim that is to be
// withdrawn after it.
func (h *handoff) found(g *Guard, err error) (unwanted *claim) {
	c, gaveUp := h.client, h.gaveUp
	h.seeking, h.giveUp = false, nil
	switch {
	case err != nil && gaveUp: // whoever has joined since is searched for anew
	case err != nil && c.closed:
		h.fail(ErrClosed)
	case err != nil:
		h.fail(err)
	case !g.holds(): // lost, or closed, before anybody has it
	case len(h.waiters) == 0:
		c.finish(g.claim, nil)
		c.measureHold(g, nil)
		unwanted = c.settleUnwanted(g.claim)
	default:
		g.claim.handoff, h.turn, h.givenBack = h, true, 0
		h.passes, h.owed, h.ends = c.cfg.LocalBatch, len(h.waiters)-1, after(c.now(), turnLength)
		h.hand(g, false)
	}
	return unwanted
}

// hand gives a Guard to the first in the queue.
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

// turnEnded says that the claim of a turn is released or lost. It runs under mu.
func (h *handoff) turnEnded() {
	h.turn = false
	h.next()
}

// pass hands the lock of a holder that is done to the next in the queue, if the turn
// allows it and the lease is in good health. The claim stays as it is, with its
// deadline and with every call of it that is under way; only its owner changes, and
// with it the token and the context. It runs under mu.
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

// checkBatch refuses a LocalBatch that cannot be had.
func checkBatch(cfg *Config, caps driver.Caps) error {
	switch {
	case cfg.LocalBatch == 0:
		return nil
	case cfg.RequireFair:
		return fmt.Errorf("%w: RequireFair with LocalBatch, which serves goroutines of one process before others", ErrInvalidConfig)
	case !caps.FenceRange:
		return fmt.Errorf("%w: LocalBatch, but %s cannot reserve tokens", ErrUnsupported, caps.Name)
	}
	return nil
}
