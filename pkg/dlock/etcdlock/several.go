package etcdlock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// maxTogether is how many claims of one AcquireAll share a transaction. The server counts the operations along a path
// of nested transactions: here three for each claim, and it allows 128 by default.
const maxTogether = 32

// CanBatch reports whether one transaction can have all keys.
func (d *etcdDriver) CanBatch(keys []string) bool { return int64(len(keys)) <= d.together.Load() }

// tooMany records that a server refused a transaction for so many claims. One claim may be too large by itself.
func (d *etcdDriver) tooMany(claims int) {
	for claims > 1 {
		most := d.together.Load()
		if int64(claims/2) >= most || d.together.CompareAndSwap(most, int64(claims/2)) {
			return
		}
	}
}

// AcquireBatch submits all claims in one transaction. After an attempt without an answer, it first reads what that
// attempt has stored.
func (d *etcdDriver) AcquireBatch(ctx context.Context, rs []driver.Request) ([]driver.State, error) {
	if err := d.usable(ctx); err != nil {
		return nil, err
	}
	if rs[0].Fixed { // such a claim has a lease of its own
		return nil, fmt.Errorf("%w: claims without renewal in one transaction", driver.ErrUnsupported)
	}
	defer d.call()()
	ctx = clientv3.WithRequireLeader(ctx)
	for range maxTries {
		claims, repeated, err := d.enterAll(ctx, rs)
		if err != nil {
			return nil, err
		}
		states, err := d.submitAll(ctx, claims, rs, repeated)
		if err == nil {
			return states, nil
		}
		d.submitFailed(err, claims...)
		if !errors.Is(err, errLeaseGone) && !errors.Is(err, errRemoved) {
			return nil, err
		}
	}
	return nil, errLeasesEnd
}

// errLeasesEnd: each lease that the claims were to be stored on ended at once.
var errLeasesEnd = driver.Classify(errors.New("the lease ended before the claims were stored, several times"), driver.Transient)

// enterAll returns a claim for each request, and whether one of them was submitted before. If none was, all are on one
// lease.
func (d *etcdDriver) enterAll(ctx context.Context, rs []driver.Request) (claims []*claim, repeated bool, err error) {
	for range maxTries {
		claims = make([]*claim, len(rs))
		for i, r := range rs {
			if claims[i], err = d.enter(ctx, r); err != nil {
				d.submitFailed(err, claims[:i]...)
				return nil, false, err
			}
		}
		d.mu.Lock()
		repeated = slices.ContainsFunc(claims, func(c *claim) bool { return c.rev != 0 || c.open || c.retired })
		split := slices.ContainsFunc(claims, func(c *claim) bool { return c.lease != claims[0].lease })
		if split && !repeated { // a lease ended meanwhile
			for _, c := range claims {
				d.forget(c)
			}
		}
		d.mu.Unlock()
		if repeated || !split {
			return claims, repeated, nil
		}
	}
	return nil, false, errLeasesEnd
}

// errOutOfOrder: a claim was removed while those after it were stored.
var errOutOfOrder = driver.Classify(errors.New("a claim was removed while it was submitted"), driver.Ambiguous)

// submitAll is submit for several claims, in order, until one is not granted.
func (d *etcdDriver) submitAll(ctx context.Context, claims []*claim, rs []driver.Request, repeated bool) ([]driver.State, error) {
	sent := time.Now()
	ss := make([]submission, len(claims))
	d.mu.Lock()
	for i, c := range claims {
		ss[i] = d.submissionOf(c, rs[i])
	}
	leases := leasesOf(claims, func(l *lease) bool { return repeated || l.aged(sent) })
	d.mu.Unlock()
	var alive []chan error
	for _, l := range leases {
		alive = append(alive, d.joinLease(ctx, l, true))
	}
	held, err := d.storeAll(ctx, ss, repeated)
	if err != nil {
		return nil, err
	}
	if len(held) > 0 {
		for _, a := range alive {
			if err := awaitLease(a); err != nil {
				return nil, err
			}
		}
	}
	states := make([]driver.State, len(claims))
	for i, c := range claims {
		switch {
		case i < len(held):
			states[i] = d.record(c, held[i], sent)
		case repeated: // it may be stored: a release will tell
			states[i] = driver.State{Phase: driver.Gone}
		default:
			states[i] = d.record(c, position{phase: driver.Gone}, sent)
		}
		if i > 0 && states[i].Phase == driver.Held && states[i-1].Phase != driver.Held {
			return nil, errOutOfOrder
		}
	}
	return states, nil
}

// leasesOf returns the leases of claims that are needed, each once. The caller holds mu.
func leasesOf(claims []*claim, needed func(*lease) bool) (leases []*lease) {
	for _, c := range claims {
		if needed(c.lease) && !slices.Contains(leases, c.lease) {
			leases = append(leases, c.lease)
		}
	}
	return leases
}

// storeAll stores claims, and returns the positions of those that hold their locks.
func (d *etcdDriver) storeAll(ctx context.Context, ss []submission, repeated bool) (held []position, err error) {
	if repeated {
		found, rest, err := d.findHeld(ctx, ss)
		if err != nil || !rest {
			return found, err
		}
		held = found
	}
	left := ss[len(held):]
	if i := slices.IndexFunc(left, func(s submission) bool { return s.rev != 0 }); i >= 0 {
		left = left[:i] // that one is stored, and so ends the chain: it is not stored once more if it is removed meanwhile
	}
	p, n, err := d.sendAll(ctx, left)
	if errors.Is(err, ErrNoSpace) {
		err = d.withdraw(ctx, err, left...)
	}
	if err != nil && len(held) > 0 && driver.ClassOf(err) == driver.Transient {
		err = stored(err) // those before it are
	}
	if err != nil {
		return nil, err
	}
	return append(held, slices.Repeat([]position{p}, n)...), nil
}

// findHeld reads which claims hold their locks after an attempt that was not answered, up to the first that does not.
// rest reports whether the others can be submitted: the next is not stored, and all are on one lease.
func (d *etcdDriver) findHeld(ctx context.Context, ss []submission) (held []position, rest bool, err error) {
	oldest := []clientv3.OpOption{
		clientv3.WithPrefix(), clientv3.WithKeysOnly(), clientv3.WithLimit(1), clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortAscend),
	}
	var reads []clientv3.Op
	oneLease := true
	for i := range ss {
		s := &ss[i]
		reads = append(reads, clientv3.OpGet(s.own), clientv3.OpGet(s.prefix, oldest...))
		oneLease = oneLease && s.lease == ss[0].lease
	}
	resp, err := d.kv.Txn(ctx).Then(reads...).Commit()
	if err != nil {
		return nil, false, classify(err)
	}
	if d.forgetRemoved(ss, resp.Responses) {
		return nil, false, errRemoved
	}
	for i := range ss {
		s := &ss[i]
		own, first := resp.Responses[2*i].GetResponseRange().Kvs, resp.Responses[2*i+1].GetResponseRange().Kvs
		switch {
		case d.isRetired(s.claim):
			return held, false, nil
		case !s.isStored(own):
			return held, oneLease, nil
		case string(first[0].Key) != s.own: // it waits, or there is other data
			return held, false, nil
		}
		held = append(held, position{phase: driver.Held, rev: own[0].CreateRevision, asOf: resp.Header.Revision})
	}
	return held, false, nil
}

// sendAll stores claims in order while their locks are free, and returns how many. Each claim but the first is part of
// what the transaction of the one before it does.
func (d *etcdDriver) sendAll(ctx context.Context, ss []submission) (p position, held int, err error) {
	var next []clientv3.Op
	var bare []clientv3.Op // see batch.bare
	for i := range slices.Backward(ss) {
		s := &ss[i]
		next = []clientv3.Op{clientv3.OpTxn(s.free(), append([]clientv3.Op{s.put()}, next...), nil)}
		bare = append(bare, clientv3.OpPut(s.own, ""))
	}
	resp, err := d.kv.Txn(ctx).Then(next...).Else(bare...).Commit()
	if err != nil {
		return position{}, 0, d.refusedAll(err, len(ss))
	}
	ops := resp.Responses
	for len(ops) > 0 && ops[len(ops)-1].GetResponseTxn().GetSucceeded() {
		held++
		ops = ops[len(ops)-1].GetResponseTxn().GetResponses()
	}
	rev := resp.Header.Revision
	return position{phase: driver.Held, rev: rev, asOf: rev}, held, nil
}

// refusedAll classifies the error of a transaction for several claims. If it is too large, it was not executed, and the
// next ones are smaller.
func (d *etcdDriver) refusedAll(err error, claims int) error {
	if refusalOf(err).tooLarge {
		d.tooMany(claims)
		return driver.Classify(err, driver.Fatal)
	}
	return classify(err)
}

// ReleaseBatch deletes the keys of claims that hold their locks while no claim of this driver waits behind them, as
// delete does. It leaves all others.
func (d *etcdDriver) ReleaseBatch(ctx context.Context, refs []driver.Ref) ([]driver.State, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	defer d.call()()
	ctx = clientv3.WithRequireLeader(ctx)
	states := make([]driver.State, len(refs))
	claims, indexes, deletes := make([]*claim, 0, len(refs)), make([]int, 0, len(refs)), make([]clientv3.Op, 0, len(refs))
	d.mu.Lock()
	for i, r := range refs {
		if c := d.claims[r.ID]; d.endsSimply(c, r) {
			claims, indexes, deletes = append(claims, c), append(indexes, i), append(deletes, clientv3.OpDelete(c.own))
		}
	}
	d.mu.Unlock()
	if len(claims) == 0 {
		return states, nil
	}
	resp, err := d.client.Txn(ctx).Then(deletes...).Commit()
	mayArrive := err != nil && !refusalOf(err).tooLarge // the client may have sent it before, whatever the last attempt says
	if err != nil {
		err = d.refusedAll(err, len(claims))
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for j, c := range claims {
		c.tainted = mayArrive
		if err != nil {
			continue
		}
		st := &states[indexes[j]]
		st.Phase = driver.Gone
		if resp.Responses[j].GetResponseDeleteRange().GetDeleted() > 0 {
			st.Phase = driver.Held
		}
		d.forget(c)
	}
	if err != nil {
		return nil, err
	}
	return states, nil
}
