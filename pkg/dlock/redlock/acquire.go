package redlock

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/internal/redisnode"
)

// Acquire tries once if the claim is the first of this driver, and stands in line
// else.
func (d *redDriver) Acquire(ctx context.Context, r driver.Request) (driver.State, error) {
	switch {
	case ctx.Err() != nil:
		return driver.State{}, driver.Classify(ctx.Err(), driver.Transient) // nothing was sent
	case !capacities().Supports(r.Mode):
		return driver.State{}, fmt.Errorf("%w: mode %s: a majority cannot count holders", driver.ErrUnsupported, r.Mode)
	case r.Fences > 1:
		return driver.State{}, fmt.Errorf("%w: a range of %d tokens", driver.ErrUnsupported, r.Fences)
	}
	d.warnOnce()
	l := d.enter(r.Key)
	defer d.leave(l)
	c, isHeld := d.file(l, &r)
	if isHeld {
		return d.refile(ctx, r.Ref)
	}
	st, err := d.attempt(ctx, l, c)
	if err != nil {
		d.abandon(c, err)
	}
	return st, err
}

// file returns the claim of a request, a new one if there is none yet, and whether it
// is held.
func (d *redDriver) file(l *line, r *driver.Request) (*claim, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.sweepForgotten()
	now := time.Now()
	if c := d.claims[claimID{r.Key, r.ID}]; c != nil {
		if c.phase == driver.Queued {
			c.until = now.Add(driver.Heartbeat(r.TTL))
		}
		return c, c.phase == driver.Held
	}
	c := &claim{
		names: d.namesOf(r.Key), key: r.Key, id: r.ID, info: d.info.Encode(r.Info), waits: r.Wait,
		phase: driver.Queued, ttl: r.TTL, until: now.Add(driver.Heartbeat(r.TTL)), open: make([]int, len(d.nodes)),
	}
	if r.Wait {
		d.claims[claimID{r.Key, r.ID}] = c
		l.waiting = append(l.waiting, c)
	}
	return c, false
}

// refile files a claim again that is held, which is to renew it.
func (d *redDriver) refile(ctx context.Context, r driver.Ref) (driver.State, error) {
	states, err := d.Renew(ctx, []driver.Ref{r})
	if err == nil && states[0].Phase == driver.Unknown {
		err = ErrNoQuorum
	}
	if err != nil {
		return driver.State{}, err
	}
	return states[0], nil
}

// abandon forgets a claim whose filing failed: the caller files it again, or releases
// it.
func (d *redDriver) abandon(c *claim, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.drop(c)
	nothing := isUnsent(err) && c.isSettled() && !c.shown
	if driver.ClassOf(err) != driver.Ambiguous && !nothing {
		d.removeEverywhere(c) // the caller takes it for not stored, so nobody else will
	}
}

// isSettled reports whether no call that stores the claim may yet arrive.
func (c *claim) isSettled() bool {
	return !slices.ContainsFunc(c.open, func(calls int) bool { return calls > 0 })
}

// attempt tries to win the lock for a claim whose turn it is.
func (d *redDriver) attempt(ctx context.Context, l *line, c *claim) (driver.State, error) {
	sent := time.Now()
	if blocked, recheck := d.isBlocked(l, c); blocked {
		return d.stand(ctx, l, c, sent, recheck)
	}
	select {
	case l.turn <- struct{}{}:
		defer func() { <-l.turn }()
	case <-ctx.Done():
		return driver.State{}, ctx.Err()
	}
	if blocked, recheck := d.isBlocked(l, c); blocked { // it was another's turn
		return d.stand(ctx, l, c, sent, recheck)
	}
	out := d.contend(ctx, c)
	for again := 1; !c.waits && out.split && again < tryRounds && out.err == nil; again++ {
		out.rest()
		if err := pause(ctx, max(scatter(d.window(2<<again)), time.Millisecond)); err != nil {
			return driver.State{}, err
		}
		out = d.contend(ctx, c)
	}
	defer out.rest() // after the claim is noted as held, else what comes late is taken back
	return d.judge(l, c, sent, out)
}

// tryRounds is how many rounds a claim makes that does not wait, as long as nobody has
// the lock: others may have disturbed it, or a release may not have reached all nodes.
const tryRounds = 4

// pause lets time pass, or says why ctx does not allow it.
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

func (d *redDriver) isBlocked(l *line, c *claim) (bool, time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.blocked(l, c, time.Now())
}

// judge says what the result of a round means for a claim.
func (d *redDriver) judge(l *line, c *claim, sent time.Time, out outcome) (driver.State, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case out.err != nil:
		return driver.State{}, out.err
	case c.phase == driver.Gone: // it was released meanwhile
		d.removeEverywhere(c)
		return driver.State{Phase: driver.Gone}, nil
	case out.won:
		d.won(l, c, out)
		return driver.State{Phase: driver.Held, Token: out.token, Until: out.until}, nil
	case out.barred, !c.waits:
		d.drop(c)
		d.removeEverywhere(c)
		return driver.State{Phase: driver.Gone}, nil
	}
	d.listen(c)
	return d.queued(l, c, sent, d.pauseAfter(c, out)), nil
}

// queued is the state of a claim that waits. It runs under mu.
func (d *redDriver) queued(l *line, c *claim, sent time.Time, recheck time.Duration) driver.State {
	h := driver.Heartbeat(c.ttl)
	return driver.State{Phase: driver.Queued, Ahead: l.ahead(c), Until: sent.Add(h), Recheck: min(recheck, h/3)}
}

// calm is the least time between two rounds when quietAfter of them have changed
// nothing and nothing was heard of the lock. A claim with a short TTL is renewed more
// often; it then only shows that it waits.
const (
	calm       = 250 * time.Millisecond
	quietAfter = 12
)

// pauseAfter is when a claim tries again of itself: when the holder's lease will have
// ended; or soon and at random, and later each time, if several contend or the lock is
// just being freed. It runs under mu.
func (d *redDriver) pauseAfter(c *claim, out outcome) time.Duration {
	third := driver.Heartbeat(c.ttl) / 3
	c.unheard++
	isQuiet := c.unheard > quietAfter
	if !out.split {
		c.tries = 0
		pause := out.left + coarse + scatter(d.window(4))
		if isQuiet && pause > calm {
			c.notSoon = time.Now().Add(calm)
		}
		return min(pause, third-scatter(third/4))
	}
	c.tries++
	window, least := d.window(1<<min(c.tries, 4)), time.Millisecond
	if c.tries > quietAfter { // a node that is free while others are held stays so for a while
		window = third
	}
	if isQuiet {
		least = calm
	}
	pause := max(min(window/8+scatter(window), third), least)
	c.notSoon = time.Now().Add(pause)
	return pause
}

// stand keeps a claim in line without a try.
func (d *redDriver) stand(ctx context.Context, l *line, c *claim, sent time.Time, recheck time.Duration) (driver.State, error) {
	barred := false
	if c.waits {
		barred = d.showWaiting(ctx, []*claim{c})[0]
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case !c.waits || c.phase == driver.Gone:
		return driver.State{Phase: driver.Gone}, nil
	case c.phase == driver.Held:
		return driver.State{Phase: driver.Held, Token: c.token, Until: c.until}, nil
	case barred:
		d.drop(c)
		d.removeEverywhere(c)
		return driver.State{Phase: driver.Gone}, nil
	}
	d.listen(c)
	return d.queued(l, c, sent, recheck), nil
}

// showWaiting lets others see that claims wait, and returns which of them were evicted.
// It is of no use to the claims themselves, so who does not answer does not matter.
func (d *redDriver) showWaiting(ctx context.Context, claims []*claim) []bool {
	echo := claims[0].id
	keys, args, bound := make([]string, 0, 2*len(claims)), make([]any, 1, 1+3*len(claims)), d.settings.longest()
	args[0] = echo
	for _, c := range claims {
		ttl := d.ttlOf(c)
		keys = append(keys, c.bar(c.id), c.waiters)
		args = append(args, c.id, millis(driver.Heartbeat(ttl)), c.info)
		bound = min(bound, d.settings.patience(ttl))
	}
	d.shown(claims...)
	for _, c := range claims {
		d.opened(c, d.nodes)
	}
	answers := make(chan answer, len(d.nodes))
	d.ask(d.nodes, d.majority, bound, echo, func(ctx context.Context, _ *node) *redisnode.Command {
		return waitScript.Command(ctx, keys, args...)
	}, answers)
	barred := make([]bool, len(claims))
	heard := 0
	for heard < d.majority && ctx.Err() == nil {
		select {
		case a := <-answers:
			heard++
			for i, c := range claims {
				d.answered(c, a)
				if a.err == nil && len(a.reply) > i+1 && redisnode.Text(a.reply[i+1]) == "barred" {
					barred[i] = true
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
	return barred
}

func (d *redDriver) ttlOf(c *claim) time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	return c.ttl
}

// forgottenMost is how many claims there may be beyond those that were alive when
// last looked at, before it is looked again.
const forgottenMost = 64

// sweepForgotten forgets claims that nobody released and whose time has long passed.
// It runs under mu.
func (d *redDriver) sweepForgotten() {
	if len(d.claims) < 2*d.swept+forgottenMost {
		return
	}
	now := time.Now()
	for _, c := range d.claims {
		if now.Sub(c.until) > driver.BarFor(c.ttl) {
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
