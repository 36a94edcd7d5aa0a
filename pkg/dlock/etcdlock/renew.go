package etcdlock

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/internal/unanswered"
)

// A renewal is the state of one call of Renew. A keep-alive proves that a lease exists, not that a
// key does, so every claim's key is read as well.
type renewal struct {
	driver *etcdDriver
	sent   time.Time
	states []driver.State
	splits atomic.Int32 // of batches with claims that were denied before
	again  atomic.Bool  // one of those claims was read: some rights are back

	mu   sync.Mutex
	errs map[*lease]error // of keep-alives that failed
	left [][]reading      // that were not split any more
}

// A visit is the renewal of one claim.
type visit struct {
	*claim
	index  int
	was    position
	near   bool  // read its place, since it will be served soon
	unsure bool  // on which lease it is
	denied bool  // at the last renewal
	target int64 // the seconds of its TTL

	is       position
	attached int64 // to this lease
	answered bool
	err      error // of a read or a move
}

// Renew keeps the leases alive and reads the keys, concurrently.
func (d *etcdDriver) Renew(ctx context.Context, refs []driver.Ref) ([]driver.State, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	defer d.call()()
	ctx = clientv3.WithRequireLeader(ctx)
	r := &renewal{driver: d, sent: time.Now(), states: make([]driver.State, len(refs)), errs: map[*lease]error{}}
	visits, leases := r.sort(refs)
	reading, stop := context.WithCancel(ctx)
	defer stop()
	var wg, alive sync.WaitGroup
	for _, l := range leases {
		alive.Go(func() { r.keepAlive(ctx, l) })
	}
	wg.Go(func() { r.read(reading, visits) })
	alive.Wait()
	if r.unreached(leases) {
		stop() // the reads would only wait for a connection, and the caller gets the cause
	}
	wg.Wait()
	r.conclude(ctx, visits)
	for _, l := range leases {
		if r.errs[l] == nil {
			d.sweep(l)
		}
	}
	return r.states, unanswered.Cause(r.states, r.causes(visits), cmp.Or(ctx.Err(), errUnread))
}

// unreached reports whether no keep-alive reached a server. A lease that is gone is an answer: the reads show what became
// of its claims.
func (r *renewal) unreached(leases []*lease) bool {
	for _, l := range leases {
		if !errors.Is(r.errs[l], driver.ErrUnavailable) {
			return false
		}
	}
	return len(leases) > 0
}

// sort finds the claims and the leases to keep alive for them. A claim that this driver did not
// submit is Gone.
func (r *renewal) sort(refs []driver.Ref) (visits []*visit, leases []*lease) {
	d := r.driver
	d.mu.Lock()
	defer d.mu.Unlock()
	seen := map[*lease]bool{}
	keep := func(l *lease) {
		if l != nil && !seen[l] {
			seen[l] = true
			leases = append(leases, l)
		}
	}
	for i, ref := range refs {
		c := d.claims[ref.ID]
		if c == nil || c.key != ref.Key {
			r.states[i] = driver.State{Phase: driver.Gone}
			continue
		}
		if c.swept {
			r.states[i] = driver.State{Phase: driver.Gone}
			keep(c.lease) // so that the sweep is repeated
			continue
		}
		c.seen = r.sent // the claim is in use, whatever the result of this call
		v := &visit{claim: c, index: i, was: c.position, target: seconds(ref.TTL)}
		v.unsure, v.denied = c.other != nil, c.denied
		c.queueTTL = ref.QueueTTL
		switch {
		case c.phase == driver.Held:
		case c.kind.mode == driver.Permit && c.before == "":
			v.near = d.isFirst(c) // the others cannot have the lock before it
		default:
			v.near = c.before == "" || (c.kind.mode == driver.Exclusive && c.ahead < near)
		}
		visits = append(visits, v)
		keep(c.lease)
		keep(c.other)
	}
	return visits, leases
}

func (r *renewal) keepAlive(ctx context.Context, l *lease) {
	if err := r.driver.keepAlive(ctx, l); err != nil {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.errs[l] = err
	}
}

// errUnread is the cause of a claim that was not read.
var errUnread = errors.New("etcdlock: no answer in time")

// causes returns why claims were not answered. The error of a keep-alive says more than that of a read, unless it was
// refused, perhaps because of another claim.
func (r *renewal) causes(visits []*visit) []error {
	errs := make([]error, len(r.states))
	r.driver.mu.Lock()
	defer r.driver.mu.Unlock()
	for _, v := range visits {
		errs[v.index] = cmp.Or(r.errs[v.lease], r.errs[v.other], v.err)
		if isDenied(errs[v.index]) {
			errs[v.index] = cmp.Or(v.err, errs[v.index])
		}
	}
	return errs
}

// conclude sets the result for each claim.
func (r *renewal) conclude(ctx context.Context, visits []*visit) {
	d := r.driver
	var wg sync.WaitGroup
	turn := make(chan struct{}, movers)
	for _, v := range visits {
		switch {
		case !v.answered:
		case v.is.phase == driver.Gone:
			r.states[v.index] = d.record(v.claim, v.is, r.sent)
		case d.misplaced(v):
			turn <- struct{}{}
			wg.Go(func() {
				defer func() { <-turn }()
				v.err = r.move(ctx, v)
			})
		case r.kept(v.claim):
			r.states[v.index] = d.record(v.claim, v.is, r.sent)
		}
	}
	wg.Wait()
}

// movers is how many claims move to another lease at a time: the server stores them together.
const movers = 64

// move moves a claim to another lease, and sets the result for it.
func (r *renewal) move(ctx context.Context, v *visit) (err error) {
	defer recoverPanic(&err)
	if err := ctx.Err(); err != nil {
		return unsent(err) // a move that is sent too late would leave it open on which lease the claim is
	}
	if err := r.driver.move(ctx, v); err != nil {
		return err
	}
	r.states[v.index] = r.driver.record(v.claim, v.is, r.sent)
	return nil
}

// kept reports whether every lease that the claim may be attached to was kept alive. A lease that
// is gone while the key exists is not one of them: the server is about to delete the key, or a move
// will never arrive.
func (r *renewal) kept(c *claim) bool {
	d := r.driver
	d.mu.Lock()
	defer d.mu.Unlock()
	if c.other != nil && (errors.Is(r.errs[c.other], errLeaseGone) || r.sent.After(c.otherBy)) {
		d.leaveOther(c)
	}
	return r.errs[c.lease] == nil && (c.other == nil || r.errs[c.other] == nil)
}

// misplaced reports whether a claim must move to another lease, because its TTL has changed, because
// its lease cannot be kept alive for want of rights to another key, or because one of several moves that
// were not answered has arrived last. A move that was not answered but has arrived is accepted.
func (d *etcdDriver) misplaced(v *visit) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	c := v.claim
	if v.unsure && c.other != nil && v.attached == int64(c.other.id) {
		c.lease, c.other = c.other, c.lease
		if c.moves == 1 { // no other can arrive
			d.leaveOther(c)
		}
	}
	return (c.lease.seconds != v.target && !c.ownLease) || (v.unsure && v.attached != int64(c.lease.id)) || (c.lease.denied != nil && !c.lease.own)
}

// move attaches a claim to the lease of its TTL. The key keeps its creation revision, and so its
// place and its token.
func (d *etcdDriver) move(ctx context.Context, v *visit) error {
	c := v.claim
	to, err := d.leaseToMoveTo(ctx, v)
	if err != nil {
		return unsent(err)
	}
	d.mu.Lock()
	aged := to.aged(time.Now())
	d.mu.Unlock()
	if aged {
		err = d.keepAlive(ctx, to)
	}
	if err != nil {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.revokeUnused(c, to)
		return err
	}
	resp, err := d.client.Txn(ctx).
		If(created(c.own, v.is.rev)).
		Then(clientv3.OpPut(c.own, "", clientv3.WithIgnoreValue(), clientv3.WithLease(to.id))).
		Commit()
	err = classify(err)
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case errors.Is(err, errLeaseGone):
		d.markLeaseDead(to)
		return err
	case d.claims[c.id] != c: // it was released meanwhile, and no lease may list it again
		d.revokeUnused(c, to)
		v.is = position{phase: driver.Gone}
		return nil
	case err != nil: // it may yet arrive, so both leases are kept
		by := time.Now().Add(driver.TombstoneTTL(to.ttl))
		if c.other != nil {
			delete(c.other.claims, c.id)
			by = later(by, c.otherBy) // an earlier move may arrive as well
		}
		c.other, c.otherBy = to, by
		c.moves++
		to.claims[c.id] = c
		return err
	case !resp.Succeeded:
		d.revokeUnused(c, to)
		v.is = position{phase: driver.Gone}
		return nil
	}
	d.attach(c, to)
	return nil
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// leaseToMoveTo returns the lease of a claim's new TTL. After a move that was not answered, a claim
// that shares no lease uses the same one again.
func (d *etcdDriver) leaseToMoveTo(ctx context.Context, v *visit) (*lease, error) {
	d.mu.Lock()
	to, own := v.other, v.isAlone()
	again := own && to != nil && !to.dead && to.seconds == v.target
	d.mu.Unlock()
	if again {
		return to, nil
	}
	return d.leaseFor(ctx, v.target, own)
}

// attach records that a claim is now on another lease. The caller holds mu.
func (d *etcdDriver) attach(c *claim, to *lease) {
	from := c.lease
	if from == to {
		return
	}
	if c.other == to {
		c.other, c.moves = nil, 0
	}
	delete(from.claims, c.id)
	c.lease = to
	to.claims[c.id] = c
	if c.isAlone() {
		d.revokeLater(from)
	}
}

// leaveOther records that a claim is not on its second lease. The caller holds mu.
func (d *etcdDriver) leaveOther(c *claim) {
	l := c.other
	delete(l.claims, c.id)
	c.other, c.moves = nil, 0
	d.revokeUnused(c, l)
}

// revokeUnused revokes a lease that was made for a claim which does not use it. The caller holds
// mu.
func (d *etcdDriver) revokeUnused(c *claim, l *lease) {
	if c.isAlone() && l != c.lease && l != c.other {
		d.revokeLater(l)
	}
}
