package etcdlock

import (
	"context"
	"errors"
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

// AcquireBatch submits all claims in one transaction. Claims that were submitted before are submitted one at a time,
// which finds what is stored.
func (d *etcdDriver) AcquireBatch(ctx context.Context, rs []driver.Request) ([]driver.State, error) {
	if err := d.usable(ctx); err != nil {
		return nil, err
	}
	defer d.call()()
	ctx = clientv3.WithRequireLeader(ctx)
	for {
		claims, repeated, err := d.enterAll(ctx, rs)
		switch {
		case err != nil:
			return nil, err
		case repeated:
			return d.acquireInOrder(ctx, rs)
		}
		states, err := d.submitAll(ctx, claims, rs)
		if err == nil {
			return states, nil
		}
		d.submitFailed(err, claims...)
		if !errors.Is(err, errLeaseGone) {
			return nil, err
		}
	}
}

// enterAll returns a claim for each request, all on one lease, or reports that one of them was submitted before.
func (d *etcdDriver) enterAll(ctx context.Context, rs []driver.Request) (claims []*claim, repeated bool, err error) {
	for {
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
}

// acquireInOrder submits one claim after another, until one is not granted.
func (d *etcdDriver) acquireInOrder(ctx context.Context, rs []driver.Request) ([]driver.State, error) {
	states := make([]driver.State, len(rs))
	for i := range states {
		states[i].Phase = driver.Gone
	}
	for i, r := range rs {
		st, err := d.Acquire(ctx, r)
		switch {
		case err != nil && i > 0 && driver.ClassOf(err) == driver.Transient:
			return nil, stored(err) // those before it are
		case err != nil:
			return nil, err
		case st.Phase != driver.Held:
			return states, nil
		}
		states[i] = st
	}
	return states, nil
}

// errOutOfOrder: a claim was removed while those after it were stored.
var errOutOfOrder = driver.Classify(errors.New("a claim was removed while it was submitted"), driver.Ambiguous)

// submitAll is submit for claims that were not submitted before and are on one lease.
func (d *etcdDriver) submitAll(ctx context.Context, claims []*claim, rs []driver.Request) ([]driver.State, error) {
	sent := time.Now()
	ss := make([]submission, len(claims))
	d.mu.Lock()
	l := claims[0].lease
	join := l.aged(sent)
	for i, c := range claims {
		ss[i] = d.submissionOf(c, rs[i])
	}
	d.mu.Unlock()
	alive := d.joinLease(ctx, l, join)
	p, held, err := d.sendAll(ctx, ss)
	if errors.Is(err, ErrNoSpace) {
		err = d.withdrawAll(ctx, ss, err)
	}
	if err != nil {
		return nil, err
	}
	if held > 0 {
		if err := awaitLease(alive); err != nil {
			return nil, err
		}
	}
	states := make([]driver.State, len(claims))
	for i, c := range claims {
		if i == held {
			p = position{phase: driver.Gone}
		}
		states[i] = d.record(c, p, sent)
		if i > 0 && states[i].Phase == driver.Held && states[i-1].Phase != driver.Held {
			return nil, errOutOfOrder
		}
	}
	return states, nil
}

// sendAll stores claims in order while their keys are free, and returns how many. Each claim but the first is part of
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
		if refusalOf(err).tooLarge {
			d.together.Store(int64(len(ss) / 2))
		}
		return position{}, 0, classify(err)
	}
	ops := resp.Responses
	for len(ops) > 0 && ops[len(ops)-1].GetResponseTxn().GetSucceeded() {
		held++
		ops = ops[len(ops)-1].GetResponseTxn().GetResponses()
	}
	rev := resp.Header.Revision
	return position{phase: driver.Held, rev: rev, asOf: rev}, held, nil
}

// withdrawAll is withdraw for each of several claims.
func (d *etcdDriver) withdrawAll(ctx context.Context, ss []submission, refused error) error {
	errs := make([]error, len(ss))
	for i, s := range ss {
		errs[i] = d.withdraw(ctx, s, refused)
	}
	for _, err := range errs {
		if driver.ClassOf(err) == driver.Ambiguous {
			return err
		}
	}
	return refused
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
	claims, deletes := make([]*claim, len(refs)), make([]clientv3.Op, 0, len(refs))
	d.mu.Lock()
	for i, r := range refs {
		if c := d.claims[r.ID]; d.endsSimply(c, r) {
			claims[i] = c
			deletes = append(deletes, clientv3.OpDelete(c.own))
		}
	}
	d.mu.Unlock()
	if len(deletes) == 0 {
		return states, nil
	}
	resp, err := d.client.Txn(ctx).Then(deletes...).Commit()
	if err != nil {
		return nil, classify(err) // the keys are not reused: the deletes may still arrive
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	answers := resp.Responses
	for i, c := range claims {
		if c == nil {
			continue
		}
		states[i].Phase = driver.Gone
		if answers[0].GetResponseDeleteRange().GetDeleted() > 0 {
			states[i].Phase = driver.Held
		}
		answers = answers[1:]
		c.tainted = false
		d.forget(c)
	}
	return states, nil
}
