package redlock

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/internal/redisnode"
)

// Acquire tries once if the claim is the first of this driver. Otherwise the claim waits in the
// queue.
func (d *redDriver) Acquire(ctx context.Context, r driver.Request) (driver.State, error) {
	switch {
	case ctx.Err() != nil:
		return driver.State{}, driver.Classify(ctx.Err(), driver.Transient) // nothing was sent
	case !capacities().Supports(r.Mode):
		return driver.State{}, fmt.Errorf("%w: mode %s: a majority cannot count holders", driver.ErrUnsupported, r.Mode)
	case r.Tokens > 1:
		return driver.State{}, fmt.Errorf("%w: a range of %d tokens", driver.ErrUnsupported, r.Tokens)
	}
	d.warnOnce()
	q := d.enter(r.Key)
	defer d.leave(q)
	c, isHeld := d.submit(q, &r)
	if isHeld {
		return d.resubmit(ctx, r.Ref)
	}
	st, err := d.attempt(ctx, q, c)
	if err != nil {
		d.abandon(c, err)
	}
	return st, err
}

// submit returns the claim of a request, creating it if needed, and whether it is held.
func (d *redDriver) submit(q *waitQueue, r *driver.Request) (*claim, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.sweepForgotten()
	now := time.Now()
	if c := d.claims[claimID{r.Key, r.ID}]; c != nil {
		if c.phase == driver.Queued {
			c.until = now.Add(r.Heartbeat())
		}
		return c, c.phase == driver.Held
	}
	c := &claim{
		names: d.namesOf(r.Key), key: r.Key, id: r.ID, info: d.info.Encode(r.Info), waits: r.Wait, queueTTL: r.QueueTTL,
		phase: driver.Queued, ttl: r.TTL, until: now.Add(r.Heartbeat()), open: make([]int, len(d.nodes)), began: d.latest(),
	}
	if r.Wait {
		d.claims[claimID{r.Key, r.ID}] = c
		q.waiting = append(q.waiting, c)
	}
	return c, false
}

// resubmit handles the resubmission of a held claim by renewing it.
func (d *redDriver) resubmit(ctx context.Context, r driver.Ref) (driver.State, error) {
	states, err := d.Renew(ctx, []driver.Ref{r})
	if err == nil && states[0].Phase == driver.Unknown {
		err = errNotEnough
	}
	if err != nil {
		return driver.State{}, err
	}
	return states[0], nil
}

// abandon forgets a claim whose submission failed: the caller submits it again or releases it.
func (d *redDriver) abandon(c *claim, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.drop(c)
	nothing := isUnsent(err) && c.noneMayArrive() && !c.shown
	if driver.ClassOf(err) != driver.Ambiguous && !nothing {
		d.removeEverywhere(c) // the caller treats it as not stored, so it will not release it
	}
}

// noneMayArrive reports whether no call that stores the claim can still arrive.
func (c *claim) noneMayArrive() bool {
	return !slices.ContainsFunc(c.open, func(calls int) bool { return calls > 0 })
}

// attempt tries to win the lock for the claim at the head of the queue.
func (d *redDriver) attempt(ctx context.Context, q *waitQueue, c *claim) (driver.State, error) {
	sent := time.Now()
	if blocked, recheck := d.isBlocked(q, c); blocked {
		return d.stay(ctx, q, c, sent, recheck)
	}
	select {
	case q.turn <- struct{}{}:
		defer func() { <-q.turn }()
	case <-ctx.Done():
		return driver.State{}, d.cutOff(c, ctx.Err())
	}
	if blocked, recheck := d.isBlocked(q, c); blocked { // it was another's turn
		return d.stay(ctx, q, c, sent, recheck)
	}
	out := d.contend(ctx, c)
	for again := 1; !c.waits && out.split && again < tryRounds && out.err == nil; again++ {
		out.rest()
		if err := pause(ctx, max(scatter(d.window(2<<again)), time.Millisecond)); err != nil {
			return driver.State{}, err
		}
		out = d.contend(ctx, c)
	}
	defer out.rest() // after the claim is recorded as held, else late answers are taken back
	return d.judge(q, c, sent, out)
}

// cutOff returns the error of a call whose context has ended before its turn came.
func (d *redDriver) cutOff(c *claim, err error) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if c.tried || c.shown {
		return err
	}
	return driver.Classify(err, driver.Transient) // nothing was sent
}

// tryRounds is how many rounds a claim that does not wait makes while no claim has the lock: other
// claims may have interfered, or a release may not have reached all nodes.
const tryRounds = 4

// pause waits for t, or returns an error if ctx does not allow it.
func pause(ctx context.Context, t time.Duration) error {
	timer := time.NewTimer(t)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (d *redDriver) isBlocked(q *waitQueue, c *claim) (bool, time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.blocked(q, c, time.Now())
}

// judge determines what the result of a round means for a claim.
func (d *redDriver) judge(q *waitQueue, c *claim, sent time.Time, out outcome) (driver.State, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case c.phase == driver.Gone: // it was released meanwhile
		d.removeEverywhere(c)
		return driver.State{Phase: driver.Gone}, nil
	case out.err != nil:
		return driver.State{}, out.err
	case out.won:
		d.won(q, c, out)
		return driver.State{Phase: driver.Held, Token: out.token, Until: out.until}, nil
	case out.tombstoned, !c.waits:
		d.drop(c)
		d.removeEverywhere(c)
		return driver.State{Phase: driver.Gone}, nil
	}
	d.listen(c)
	return d.queued(q, c, sent, d.pauseAfter(c, out)), nil
}

// queued returns the state of a waiting claim. The caller holds mu.
func (d *redDriver) queued(q *waitQueue, c *claim, sent time.Time, recheck time.Duration) driver.State {
	return driver.State{Phase: driver.Queued, Ahead: q.ahead(c), Until: sent.Add(c.heartbeat(c.ttl)), Recheck: min(recheck, c.third())}
}

// quietPause is the shortest time between two rounds after quietAfter rounds have changed nothing
// and no message about the lock has arrived. A claim with a short TTL is renewed more often; it
// then only shows that it waits.
const (
	quietPause = 250 * time.Millisecond
	quietAfter = 12
)

// pauseAfter returns when a claim tries again by itself: when the holder's lease will have ended;
// or after a short random time that grows with each try, if several claims contend or the lock is
// just being freed. The caller holds mu.
func (d *redDriver) pauseAfter(c *claim, out outcome) time.Duration {
	third := c.third()
	c.unheard++
	isQuiet := c.unheard > quietAfter
	if !out.split {
		c.tries = 0
		pause := out.left + expiryRounding + scatter(d.window(4))
		if isQuiet && pause > quietPause {
			c.notSoon = time.Now().Add(quietPause)
		}
		return min(pause, third-scatter(third/4))
	}
	c.tries++
	window, least := d.window(1<<min(c.tries, 4)), time.Millisecond
	if c.tries > quietAfter { // a node that is free while others are held stays so for a while
		window = third
	}
	if isQuiet {
		least = quietPause
	}
	pause := max(min(window/8+scatter(window), third), least)
	c.notSoon = time.Now().Add(pause)
	return pause
}

// stay keeps a claim in the queue without an attempt.
func (d *redDriver) stay(ctx context.Context, q *waitQueue, c *claim, sent time.Time, recheck time.Duration) (driver.State, error) {
	tombstoned := c.waits && len(d.showWaiting(ctx, c)) > 0
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case !c.waits || c.phase == driver.Gone:
		return driver.State{Phase: driver.Gone}, nil
	case c.phase == driver.Held:
		return driver.State{Phase: driver.Held, Token: c.token, Until: c.until}, nil
	case tombstoned:
		d.drop(c)
		d.removeEverywhere(c)
		return driver.State{Phase: driver.Gone}, nil
	}
	d.listen(c)
	return d.queued(q, c, sent, recheck), nil
}

// showWaiting records on the nodes that claims wait, and returns which of them were evicted. The
// claims do not depend on it, so missing answers do not matter.
func (d *redDriver) showWaiting(ctx context.Context, claims ...*claim) (evicted []*claim) {
	if claims = d.opened(claims...); len(claims) == 0 {
		return nil
	}
	d.shown(claims...)
	echo := claims[0].id
	keys, args, timeout := make([]string, 0, 3*len(claims)), make([]any, 1, 1+5*len(claims)), d.settings.longest()
	args[0] = echo
	for _, c := range claims {
		ttl, tried := d.waitingFor(c)
		channel := ""
		if tried {
			channel = d.channel
		}
		keys = append(keys, c.tombstone(c.id), c.waiters, c.queue)
		args = append(args, c.id, millis(c.heartbeat(ttl)), c.info, channel, c.began)
		timeout = min(timeout, d.settings.patience(ttl))
	}
	answers := make(chan answer, len(d.nodes))
	d.ask(d.nodes, d.majority, timeout, echo, func(ctx context.Context, _ *node) *redisnode.Command {
		return waitScript.Command(ctx, keys, args...)
	}, answers)
	heard := 0
	for heard < d.majority && ctx.Err() == nil {
		select {
		case a := <-answers:
			heard++
			for i, c := range claims {
				d.answered(c, a)
				if a.err == nil && len(a.reply) > i+1 && redisnode.Text(a.reply[i+1]) == "tombstoned" {
					evicted = append(evicted, c)
				}
			}
		case <-ctx.Done():
		}
	}
	d.work.Go(func() {
		for range len(d.nodes) - heard {
			a := <-answers
			for _, c := range claims {
				d.answered(c, a)
			}
		}
	})
	return evicted
}

func (d *redDriver) ttlOf(c *claim) time.Duration {
	ttl, _ := d.waitingFor(c)
	return ttl
}

// waitingFor returns the TTL that a claim is to have, and whether it has tried.
func (d *redDriver) waitingFor(c *claim) (ttl time.Duration, tried bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return c.ttl, c.tried
}

// maxForgotten is how many claims may be added to those that were alive at the last check before
// the next check.
const maxForgotten = 64

// sweepForgotten forgets claims that were never released and whose time passed long ago. The caller
// holds mu.
func (d *redDriver) sweepForgotten() {
	if len(d.claims) < 2*d.swept+maxForgotten {
		return
	}
	now := time.Now()
	for _, c := range d.claims {
		if now.Sub(c.until) > driver.TombstoneTTL(c.ttl) {
			d.drop(c)
		}
	}
	for key, at := range d.yields {
		if now.After(at) {
			delete(d.yields, key)
		}
	}
	d.swept = len(d.claims)
}
