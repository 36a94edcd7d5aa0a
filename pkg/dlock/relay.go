package dlock

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// A relay is for Config.LocalBatch: the goroutines of this Client that wait for one
// key stand in one line, and one claim is filed for all of them. Whoever holds the
// lock passes it on to the next without asking the backend, until the turn is over;
// then it goes back, and the next turn is filed at the end of the backend's queue.
//
// The claim belongs to the relay, not to the one who came first: if that one gives
// up, the others keep their place.
type relay struct {
	client   *Client
	name     relayName
	settings lockSettings

	turnOver chan struct{} // buffered by one: the claim is released, or lost

	// Under client.mu.
	line   []*runner
	passes int                // left in this turn
	ends   int64              // of this turn
	giveUp context.CancelFunc // of the claim that is being sought; nil if none is
	gaveUp bool               // it was given up, since nobody waited
}

// A relayName is what must be the same for those who share a claim.
type relayName struct {
	key         string
	ttl, margin time.Duration
	info        driver.Info
}

// A runner is a call that waits in line.
type runner struct {
	got chan handed // buffered by one
}

type handed struct {
	guard *Guard
	err   error
}

// turn is how long a lock is passed on. Others wait meanwhile.
const turn = 5 * time.Millisecond

// relayed reports whether a call may share its claim: one that waits for a lock of
// the plain kind.
func (s *lockSettings) relayed() bool {
	return s.waits() && s.mode == driver.Exclusive && !s.noRenew && s.minHold == 0 && s.maxHold == 0
}

// join waits in line for the lock.
func (c *Client) join(ctx context.Context, key string, s *lockSettings) (*Guard, error) {
	if ctx.Err() != nil {
		return nil, ctxError(ctx)
	}
	if err := c.enter(); err != nil {
		return nil, err
	}
	defer c.leave()
	name := relayName{key, s.ttl, s.margin, s.info}
	name.info.Trace = ""
	run := &runner{make(chan handed, 1)}
	r := c.lineUp(name, s, run)
	return r.await(ctx, run, s)
}

// lineUp puts a runner into the line of its relay, which begins if there is none.
func (c *Client) lineUp(name relayName, s *lockSettings, run *runner) *relay {
	c.mu.Lock()
	defer c.unlock()
	r := c.relays[name]
	if r == nil {
		r = &relay{client: c, name: name, turnOver: make(chan struct{}, 1), settings: lockSettings{
			ttl: s.ttl, margin: s.margin, info: name.info, fences: c.cfg.LocalBatch + 1,
		}}
		if c.relays == nil {
			c.relays = map[relayName]*relay{}
		}
		c.relays[name] = r
		c.workers.Go(r.work)
	}
	r.line = append(r.line, run)
	return r
}

func (r *relay) await(ctx context.Context, run *runner, s *lockSettings) (*Guard, error) {
	c := r.client
	var timeUp <-chan time.Time
	if s.bounded {
		t := time.NewTimer(s.wait)
		defer t.Stop()
		timeUp = t.C
	}
	c.measureWaiting(ctx, 1)
	defer c.measureWaiting(ctx, -1)
	var err error
	select {
	case h := <-run.got:
		return h.guard, h.err
	case <-ctx.Done():
		err = ctxError(ctx)
	case <-timeUp:
		err = ErrLockHeldByOther
	case <-c.closing.Done():
		err = ErrClosed
	}
	r.leave(run)
	return nil, err
}

// leave takes a runner that gives up out of the line. If it has just been handed the
// lock, the next one gets it.
func (r *relay) leave(run *runner) {
	c := r.client
	c.mu.Lock()
	defer c.unlock()
	if i := slices.Index(r.line, run); i >= 0 {
		r.line = slices.Delete(r.line, i, i+1)
		if len(r.line) == 0 && r.giveUp != nil {
			r.gaveUp = true
			r.giveUp()
		}
		return
	}
	h := <-run.got // who is not in line was handed something
	if g := h.guard; g != nil && g.phase == held && !r.pass(g, c.now()) {
		c.finish(&g.claim, nil)
		c.settle(&g.claim)
		r.over()
	}
}

// work files one claim after the other while somebody is in line.
func (r *relay) work() {
	for {
		ctx, ok := r.next()
		if !ok {
			return
		}
		g, err := r.client.seekAlone(ctx, r.name.key, &r.settings)
		if r.begin(g, err) {
			select {
			case <-r.turnOver:
			case <-r.client.closing.Done():
			}
		}
	}
}

// next returns the context of the next search, or ends the relay.
func (r *relay) next() (context.Context, bool) {
	c := r.client
	c.mu.Lock()
	defer c.unlock()
	if c.closed {
		r.fail(ErrClosed)
	}
	if len(r.line) == 0 {
		delete(c.relays, r.name)
		return nil, false
	}
	ctx, cancel := context.WithCancel(c.closing)
	r.giveUp = cancel
	return ctx, true
}

// begin takes in what a search has brought, and reports whether a turn has begun.
func (r *relay) begin(g *Guard, err error) bool {
	c := r.client
	c.mu.Lock()
	defer c.unlock()
	gaveUp := r.gaveUp
	r.giveUp()
	r.giveUp, r.gaveUp = nil, false
	switch {
	case err != nil && gaveUp: // whoever has joined since is searched for anew
		return false
	case err != nil:
		r.fail(err)
		return false
	case g.phase != held: // lost, or closed, before anybody has it
		return false
	case len(r.line) == 0:
		c.finish(&g.claim, nil)
		c.settle(&g.claim)
		return false
	}
	select {
	case <-r.turnOver: // of an earlier turn
	default:
	}
	g.relay = r
	r.passes, r.ends = c.cfg.LocalBatch, after(c.now(), turn)
	r.hand(g)
	return true
}

// hand gives a Guard to the first in line.
func (r *relay) hand(g *Guard) {
	run := r.line[0]
	r.line = slices.Delete(r.line, 0, 1)
	run.got <- handed{guard: g}
}

func (r *relay) fail(err error) {
	for _, run := range r.line {
		run.got <- handed{err: err}
	}
	r.line = nil
}

// over tells the relay that its claim is gone.
func (r *relay) over() {
	select {
	case r.turnOver <- struct{}{}:
	default:
	}
}

// pass gives the lock of a holder that is done to the next in line, if the turn
// allows it and the lease is in good health. The next one has a token, a context and
// a life of its own; the claim and its deadline stay. It runs under mu.
func (r *relay) pass(g *Guard, now int64) bool {
	c := r.client
	if r.passes == 0 || now >= r.ends || len(r.line) == 0 || c.closed || g.failures > 0 || g.ttl != r.name.ttl || g.expired(now) {
		return false
	}
	r.passes--
	next := &Guard{claim: g.claim}
	cl := &next.claim
	cl.self, cl.slot, cl.life, cl.wait = cl, -1, nil, nil
	cl.flying, cl.again, cl.parked = false, false, false
	cl.passed, cl.token, cl.since = g.passed+1, g.token+1, now
	c.finish(&g.claim, nil)
	c.claims[cl.id] = cl
	c.measure(measurement{of: measuredHeld, n: 1})
	c.place(cl)
	r.hand(next)
	return true
}

// checkBatch refuses a LocalBatch that the backend has no tokens for.
func checkBatch(cfg *Config, caps driver.Caps) error {
	if cfg.LocalBatch > 0 && !caps.FenceRange {
		return fmt.Errorf("%w: LocalBatch, but %s cannot reserve tokens", ErrUnsupported, caps.Name)
	}
	return nil
}
