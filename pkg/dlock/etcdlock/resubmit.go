package etcdlock

import (
	"context"
	"errors"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// errRemoved: another party has removed a claim that was stored. The driver has forgotten it, and the ID can be submitted
// as a new claim.
var errRemoved = driver.Classify(errors.New("the claim was removed by another party"), driver.Transient)

// findStored looks for a claim whose creation is known. If it were stored once more, a watch or a renewal that learns of the
// first one's end would forget the second one, which nothing would remove then.
func (d *etcdDriver) findStored(ctx context.Context, s submission) (position, error) {
	resp, err := d.kv.Txn(ctx).Then(clientv3.OpGet(s.own, clientv3.WithKeysOnly())).Commit()
	if err != nil {
		return position{}, classify(err)
	}
	if !s.isStored(resp.Responses[0].GetResponseRange().Kvs) {
		d.mu.Lock()
		defer d.mu.Unlock()
		if s.claim.rev == s.rev { // else another submission has stored it anew
			d.forget(s.claim)
		}
		return position{}, errRemoved
	}
	look := func() (position, error) { return d.lookStored(ctx, s.claim, s.rev) }
	if s.wait {
		return look()
	}
	return d.withoutWaiting(ctx, s, look)
}

// forgetRemoved forgets claims that others have removed, given what findHeld has read. It reports whether there are any.
func (d *etcdDriver) forgetRemoved(ss []submission, answers []*pb.ResponseOp) (removed bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for i := range ss {
		s := &ss[i]
		if s.rev != 0 && !s.retired && !s.isStored(answers[2*i].GetResponseRange().Kvs) {
			if s.claim.rev == s.rev {
				d.forget(s.claim)
			}
			removed = true
		}
	}
	return removed
}
