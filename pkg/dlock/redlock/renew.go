package redlock

import (
	"context"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/internal/redisnode"
)

// A renewal is one call of Renew at work.
type renewal struct {
	driver *redDriver
	refs   []driver.Ref
	claims []*claim // nil for those that this driver does not know

	mu       sync.Mutex
	states   []driver.State
	answered int
	err      error // the last
}

// Renew renews what is held on all nodes, many locks a script. Of what waits, the first
// of each line tries again, and the others show that they are there. Whatever was
// answered when ctx ends counts.
func (d *redDriver) Renew(ctx context.Context, refs []driver.Ref) ([]driver.State, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if len(refs) == 0 {
		return nil, nil
	}
	r := &renewal{driver: d, refs: slices.Clone(refs), claims: make([]*claim, len(refs)), states: make([]driver.State, len(refs))}
	done := make(chan struct{})
	held, firsts, others := r.sort()
	d.work.Go(func() {
		defer close(done)
		var wg sync.WaitGroup
		for batch := range slices.Chunk(held, batchMost) {
			wg.Go(func() { r.hold(ctx, batch) })
		}
		for batch := range slices.Chunk(others, batchMost) {
			wg.Go(func() { r.stand(ctx, batch) })
		}
		for _, i := range firsts {
			wg.Go(func() { r.try(ctx, i) })
		}
		wg.Wait()
	})
	select {
	case <-done:
	case <-ctx.Done():
	}
	return r.result(ctx)
}

// batchMost is how many claims one script renews: the server does nothing else
// meanwhile.
const batchMost = 128

func (r *renewal) result(ctx context.Context) ([]driver.State, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.answered > 0 {
		return slices.Clone(r.states), nil
	}
	if r.err == nil {
		r.err = ctx.Err()
	}
	if r.err == nil {
		r.err = ErrNoQuorum
	}
	return nil, r.err
}

// sort tells apart what is held or unknown, what is to try, and what is to wait on.
// Those who wait have been heard of.
func (r *renewal) sort() (held, firsts, others []int) {
	d, now := r.driver, time.Now()
	d.mu.Lock()
	defer d.mu.Unlock()
	for i, ref := range r.refs {
		c := d.claims[claimID{ref.Key, ref.ID}]
		r.claims[i] = c
		if c == nil || c.phase == driver.Held {
			held = append(held, i)
			continue
		}
		if now.Before(c.until) {
			c.ttl, c.until = ref.TTL, now.Add(driver.Heartbeat(ref.TTL))
		}
		if blocked, _ := d.blocked(d.lines[ref.Key], c, now); blocked {
			others = append(others, i)
		} else {
			firsts = append(firsts, i)
		}
	}
	return held, firsts, others
}

// try is for the first of a line.
func (r *renewal) try(ctx context.Context, i int) {
	d, c := r.driver, r.claims[i]
	l := d.enter(c.key)
	defer d.leave(l)
	st, err := d.attempt(ctx, l, c)
	if err != nil {
		r.fail(err)
		return
	}
	r.set(i, st)
}

// stand is for those who wait behind others.
func (r *renewal) stand(ctx context.Context, batch []int) {
	d, sent := r.driver, time.Now()
	var claims []*claim
	for _, i := range batch {
		claims = append(claims, r.claims[i])
	}
	barred := d.showWaiting(ctx, claims)
	for k, i := range batch {
		r.set(i, d.stillWaits(claims[k], sent, barred[k]))
	}
}

// stillWaits is the state of a claim that did not try.
func (d *redDriver) stillWaits(c *claim, sent time.Time, barred bool) driver.State {
	d.mu.Lock()
	defer d.mu.Unlock()
	if barred && c.phase == driver.Queued {
		d.drop(c)
		d.removeEverywhere(c)
	}
	l := d.lines[c.key]
	switch {
	case c.phase == driver.Held:
		return driver.State{Phase: driver.Held, Token: c.token, Until: c.until}
	case c.phase != driver.Queued || l == nil:
		return driver.State{Phase: driver.Gone}
	}
	d.listen(c)
	_, recheck := d.blocked(l, c, time.Now())
	return d.queued(l, c, sent, recheck)
}

func (r *renewal) set(i int, st driver.State) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.states[i] = st
	r.answered++
}

func (r *renewal) fail(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.err = err
}

// A poll is what the nodes say of one claim that may be held.
type poll struct {
	yes, no int
	token   int64
	decided bool
	lacking []*node // have nothing under the key
}

// A holding is some claims that are renewed by one script on each node.
type holding struct {
	*renewal
	batch   []int
	polls   []poll
	sent    time.Time
	tally   tally
	heard   int
	answers chan answer
}

// hold renews claims that are held, and returns when each is decided or all nodes have
// answered.
func (r *renewal) hold(ctx context.Context, batch []int) {
	d := r.driver
	h := &holding{renewal: r, batch: batch, polls: make([]poll, len(batch)), sent: time.Now(), answers: make(chan answer, len(d.nodes))}
	h.send()
	for h.heard < len(d.nodes) && !h.isDecided() {
		select {
		case a := <-h.answers:
			h.take(a)
		case <-ctx.Done():
			d.work.Go(h.drain)
			return
		}
	}
	if !h.isDecided() {
		r.fail(h.tally.noQuorum(len(d.nodes), d.majority, true))
	}
	d.work.Go(h.drain)
}

func (h *holding) send() {
	d, echo := h.driver, h.refs[h.batch[0]].ID
	keys, args := make([]string, 0, 2*len(h.batch)), make([]any, 1, 1+4*len(h.batch))
	args[0] = echo
	bound := d.settings.longest()
	for _, i := range h.batch {
		ref, names := h.refs[i], d.namesOf(h.refs[i].Key)
		token, shorten := d.renewing(h.claims[i], ref.TTL)
		keys = append(keys, names.lock, names.fence)
		args = append(args, ref.ID, millis(ref.TTL), token, shorten)
		bound = min(bound, d.settings.patience(ref.TTL))
	}
	d.ask(d.nodes, d.majority, bound, echo, func(ctx context.Context, _ *node) *redisnode.Command {
		return renewScript.Command(ctx, keys, args...)
	}, h.answers)
}

// renewing notes the TTL that a claim is renewed with. A call that shortens the lease
// and gets lost may arrive later, so for as long nothing more is counted on.
func (d *redDriver) renewing(c *claim, ttl time.Duration) (token int64, shorten string) {
	if c == nil {
		return 0, "1" // nothing is known of its lease
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	shorten = "0"
	if ttl < c.ttl {
		shorten, c.least, c.leastBy = "1", ttl, time.Now().Add(driver.BarFor(ttl))
	}
	c.ttl = ttl
	return c.token, shorten
}

func (h *holding) isDecided() bool {
	return !slices.ContainsFunc(h.polls, func(p poll) bool { return !p.decided })
}

func (h *holding) take(a answer) {
	h.heard++
	if a.err == nil && len(a.reply) != len(h.batch)+1 {
		a.err = ErrReply
	}
	if a.err != nil {
		h.tally.add(a.err)
		return
	}
	for k := range h.batch {
		p := &h.polls[k]
		word := redisnode.Text(a.reply[k+1])
		if token, err := strconv.ParseInt(word, 10, 64); err == nil {
			p.yes++
			p.token = max(p.token, token)
		} else {
			p.no++
			if word == "" {
				p.lacking = append(p.lacking, a.node)
			}
		}
		h.decide(k)
	}
}

// decide reports a claim as soon as a majority agrees. It is lost only if so many nodes
// say that they do not have it that no majority can.
func (h *holding) decide(k int) {
	d, p, i := h.driver, &h.polls[k], h.batch[k]
	switch c := h.claims[i]; {
	case p.decided:
	case p.yes >= d.majority && (p.token > 0 || c != nil):
		p.decided = true
		h.set(i, d.renewed(c, h.refs[i], h.sent, p.token))
	case p.no > len(d.nodes)-d.majority, p.yes >= d.majority:
		p.decided = true
		d.lose(c)
		h.set(i, driver.State{Phase: driver.Gone})
	}
}

// renewed moves the deadline of a claim.
func (d *redDriver) renewed(c *claim, r driver.Ref, sent time.Time, token int64) driver.State {
	d.mu.Lock()
	defer d.mu.Unlock()
	ttl := r.TTL
	if c == nil {
		return driver.State{Phase: driver.Held, Token: token, Until: d.settings.until(sent, ttl)}
	}
	if c.phase != driver.Held {
		return driver.State{Phase: driver.Gone}
	}
	if c.least > 0 && time.Now().Before(c.leastBy) {
		ttl = min(ttl, c.least)
	}
	c.until = d.settings.until(sent, ttl)
	return driver.State{Phase: driver.Held, Token: c.token, Until: c.until}
}

func (d *redDriver) lose(c *claim) {
	if c == nil {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.drop(c)
}

// drain takes the late answers, and fills the nodes that lack what is held.
func (h *holding) drain() {
	for h.heard < len(h.driver.nodes) {
		h.take(<-h.answers)
	}
	for k, i := range h.batch {
		c, p := h.claims[i], &h.polls[k]
		if c == nil {
			continue
		}
		if h.tally.failed == 0 {
			h.driver.heardByAll(c, h.refs[i].TTL)
		}
		if p.yes >= h.driver.majority && len(p.lacking) > 0 {
			h.driver.fill(c, p.lacking)
		}
	}
}

// heardByAll notes that no call with this TTL is on its way any more.
func (d *redDriver) heardByAll(c *claim, ttl time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if c.least == ttl {
		c.least = 0
	}
}
