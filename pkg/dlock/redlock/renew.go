package redlock

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/internal/redisnode"
	"github.com/ceyewan/genesis/pkg/dlock/internal/unanswered"
)

// A renewal is the state of one call of Renew.
type renewal struct {
	driver *redDriver
	refs   []driver.Ref
	claims []*claim // nil for those that are gone

	mu     sync.Mutex
	states []driver.State
	errs   []error // of claims that were not answered
}

// Renew renews held claims on all nodes, many locks per script. Among the waiters, the first of
// each queue tries again, and the others record that they wait. Every answer that arrives before
// ctx ends counts.
func (d *redDriver) Renew(ctx context.Context, refs []driver.Ref) ([]driver.State, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if len(refs) == 0 {
		return nil, nil
	}
	r := &renewal{driver: d, refs: slices.Clone(refs), claims: make([]*claim, len(refs)), states: make([]driver.State, len(refs)), errs: make([]error, len(refs))}
	done := make(chan struct{})
	held, firsts, others := r.sort()
	held, apart := r.separate(held)
	d.work.Go(func() {
		defer close(done)
		var wg sync.WaitGroup
		for batch := range slices.Chunk(held, maxBatch) {
			wg.Go(func() { r.hold(ctx, batch, false) })
		}
		for batch := range slices.Chunk(apart, maxBatch) {
			wg.Go(func() { r.hold(ctx, batch, true) })
		}
		for batch := range slices.Chunk(others, maxBatch) {
			wg.Go(func() { r.renewQueued(ctx, batch) })
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

// maxBatch is how many claims one script renews: the server does nothing else meanwhile.
const maxBatch = 128

func (r *renewal) result(ctx context.Context) ([]driver.State, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.states), unanswered.Cause(r.states, r.errs, cmp.Or(ctx.Err(), errNotEnough))
}

// sort separates the claims that are held, those that try, and those that keep waiting. The other
// claims are gone: those past their deadline, and those that this driver does not know. The driver
// knows every claim that it has won, and it removes from the nodes every claim that it drops.
func (r *renewal) sort() (held, firsts, others []int) {
	d, now := r.driver, time.Now()
	d.mu.Lock()
	defer d.mu.Unlock()
	for i, ref := range r.refs {
		c := d.claims[claimID{ref.Key, ref.ID}]
		if c != nil && c.phase == driver.Queued && !now.Before(c.until) {
			d.drop(c)
			d.removeEverywhere(c)
			c = nil
		}
		r.claims[i] = c
		switch {
		case c == nil:
			r.set(i, driver.State{Phase: driver.Gone})
			continue
		case c.phase == driver.Held:
			held = append(held, i)
			continue
		}
		c.ttl, c.until = ref.TTL, now.Add(c.heartbeat(ref.TTL))
		if blocked, _ := d.blocked(d.queues[ref.Key], c, now); blocked {
			others = append(others, i)
		} else {
			firsts = append(firsts, i)
		}
	}
	return held, firsts, others
}

// try handles the first claim of a queue.
func (r *renewal) try(ctx context.Context, i int) {
	d, c := r.driver, r.claims[i]
	q := d.enter(c.key)
	defer d.leave(q)
	st, err := d.attempt(ctx, q, c)
	switch {
	case err == nil:
	case endsWait(err): // the engine submits it again, and its caller gets the cause
		d.mu.Lock()
		d.drop(c)
		d.removeEverywhere(c)
		d.mu.Unlock()
		st = driver.State{Phase: driver.Gone}
	default:
		r.fail(err, i)
		return
	}
	r.set(i, st)
}

// renewQueued handles the claims that wait behind others.
func (r *renewal) renewQueued(ctx context.Context, batch []int) {
	d, sent := r.driver, time.Now()
	var claims []*claim
	for _, i := range batch {
		claims = append(claims, r.claims[i])
	}
	evicted := d.showWaiting(ctx, claims...)
	for k, i := range batch {
		r.set(i, d.stillWaits(claims[k], sent, slices.Contains(evicted, claims[k])))
	}
}

// stillWaits returns the state of a claim that did not try.
func (d *redDriver) stillWaits(c *claim, sent time.Time, tombstoned bool) driver.State {
	d.mu.Lock()
	defer d.mu.Unlock()
	if tombstoned && c.phase == driver.Queued {
		d.drop(c)
		d.removeEverywhere(c)
	}
	q := d.queues[c.key]
	switch {
	case c.phase == driver.Held:
		return driver.State{Phase: driver.Held, Token: c.token, Until: c.until}
	case c.phase != driver.Queued || q == nil:
		return driver.State{Phase: driver.Gone}
	}
	d.listen(c)
	blocked, recheck := d.blocked(q, c, time.Now())
	if !blocked { // what blocked it has ended meanwhile
		recheck = time.Millisecond
	}
	return d.queued(q, c, sent, recheck)
}

func (r *renewal) set(i int, st driver.State) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.states[i] = st
}

// fail stores why claims were not answered.
func (r *renewal) fail(err error, claims ...int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, i := range claims {
		r.errs[i] = err
	}
}

// A poll is what the nodes say about one claim that may be held.
type poll struct {
	yes     []int // the nodes
	no      int
	tally   tally // of the nodes that said neither
	denied  bool  // by one of them, because of its key
	decided bool
	lacking []*node     // have nothing under the key
	shorter *shortening // the call, if it shortens the lease
}

// A holding is a set of claims that one script renews on each node.
type holding struct {
	*renewal
	batch   []int
	apart   bool     // each of the claims was refused because of its key
	keys    []string // two for each claim
	args    []any    // the echo, and five for each claim
	timeout time.Duration
	polls   []poll
	sent    time.Time
	heard   int
	answers chan answer
}

// hold renews held claims. It returns when each claim is decided or all nodes have answered.
func (r *renewal) hold(ctx context.Context, batch []int, apart bool) {
	d := r.driver
	h := &holding{renewal: r, batch: batch, apart: apart, polls: make([]poll, len(batch)), sent: time.Now(), answers: make(chan answer, len(d.nodes))}
	yes := make([]int, len(batch)*len(d.nodes))
	for k := range h.polls {
		from, to := k*len(d.nodes), (k+1)*len(d.nodes)
		h.polls[k].yes = yes[from:from:to]
	}
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
	for k, i := range batch {
		if p := &h.polls[k]; !p.decided && len(p.yes) < d.majority {
			r.fail(p.tally.noQuorum(len(d.nodes), d.majority, true), i)
		}
	}
	d.work.Go(h.drain)
}

func (h *holding) send() {
	d := h.driver
	all := group{end: len(h.batch)}
	h.keys, h.args, h.timeout = make([]string, 0, 2*len(h.batch)), make([]any, 1, 1+5*len(h.batch)), d.settings.longest()
	h.args[0] = h.echo(all)
	for k, i := range h.batch {
		ref, names := h.refs[i], d.namesOf(h.refs[i].Key)
		token, round, shorter := d.renewing(h.claims[i], ref.TTL)
		h.polls[k].shorter = shorter
		shorten := "0"
		if shorter != nil {
			shorten = "1"
		}
		h.keys = append(h.keys, names.lock, names.fence)
		h.args = append(h.args, ref.ID, millis(ref.TTL), token, shorten, round)
		h.timeout = min(h.timeout, d.settings.patience(ref.TTL))
	}
	d.ask(d.nodes, d.majority, h.timeout, h.echo(all), func(ctx context.Context, _ *node) *redisnode.Command {
		return h.command(ctx, all)
	}, h.answers)
}

func (h *holding) isDecided() bool {
	return !slices.ContainsFunc(h.polls, func(p poll) bool { return !p.decided })
}

func (h *holding) take(a answer) {
	if a.err != nil && len(h.batch) > 1 && h.driver.ctx.Err() == nil && redisnode.DeniedKey(a.err) {
		h.driver.workers.run(h.driver.ctx, func() { h.answers <- h.renewInGroups(a.node) })
		return
	}
	h.heard++
	if a.err == nil && len(a.reply) != len(h.batch)+1 {
		a.err = ErrUnexpectedReply
	}
	for k := range h.batch {
		err := a.err
		if err == nil {
			err = h.polls[k].take(a.node, a.reply[k+1])
		}
		if err != nil {
			h.polls[k].tally.add(err)
			h.keepApart(k, err)
		}
		if s := h.polls[k].shorter; s != nil && (err == nil || driver.ClassOf(err) != driver.Ambiguous) {
			h.driver.arrived(s, a.node)
		}
		h.decide(k)
	}
}

// take counts what a node says about the claim, see renew.lua, or returns why the node does not say it.
func (p *poll) take(n *node, said any) error {
	if err, failed := said.(error); failed {
		return err
	}
	word := redisnode.Text(said)
	if text, failed := strings.CutPrefix(word, "!"); failed {
		return redisnode.ReplyError(text)
	}
	if _, err := strconv.ParseInt(word, 10, 64); err == nil {
		p.yes = append(p.yes, n.at)
		return nil
	}
	p.no++
	if word == "" {
		p.lacking = append(p.lacking, n)
	}
	return nil
}

// decide reports a claim as soon as a majority agrees. A claim is lost only if so many nodes say
// that they do not have it that no majority can.
func (h *holding) decide(k int) {
	d, p, i := h.driver, &h.polls[k], h.batch[k]
	c := h.claims[i]
	switch {
	case p.decided:
	case len(p.yes) >= d.majority:
		st := d.renewed(c, h.refs[i], h.sent, p.yes)
		p.decided = st.Lease == 0 // else another node may confirm more
		h.set(i, st)
	case p.no > len(d.nodes)-d.majority:
		p.decided = true
		d.lose(c)
		h.set(i, driver.State{Phase: driver.Gone})
	}
}

// renewed moves the deadline of a claim that some nodes have renewed, at least a majority.
func (d *redDriver) renewed(c *claim, r driver.Ref, sent time.Time, yes []int) driver.State {
	d.mu.Lock()
	defer d.mu.Unlock()
	if c.phase != driver.Held {
		return driver.State{Phase: driver.Gone}
	}
	ttl := r.TTL
	if len(c.shorter) > 0 {
		ttl = d.confirmed(c, r.TTL, sent, yes)
	}
	c.until = d.settings.until(sent, ttl)
	st := driver.State{Phase: driver.Held, Token: c.token, Until: c.until}
	if ttl < r.TTL {
		st.Lease = ttl
	}
	return st
}

// lose forgets a claim that no majority has any more, and removes it from the nodes that still have
// it: its caller may not know that it was granted, and would not release it.
func (d *redDriver) lose(c *claim) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if c.phase == driver.Held {
		d.drop(c)
		d.removeEverywhere(c)
	}
}

// drain processes the late answers, and fills in held claims on the nodes that lack them.
func (h *holding) drain() {
	for h.heard < len(h.driver.nodes) {
		h.take(<-h.answers)
	}
	for k, i := range h.batch {
		c, p := h.claims[i], &h.polls[k]
		h.driver.drained(c, p)
		if len(p.yes) >= h.driver.majority && len(p.lacking) > 0 {
			h.driver.fill(c, p.lacking)
		}
	}
}
