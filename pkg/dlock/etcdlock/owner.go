package etcdlock

import (
	"context"
	"slices"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// ErrNotHeld: the lock is no longer held with this token.
var ErrNotHeld = driver.ErrNotHeld

// IsOwner returns a comparison for your own transaction, which then takes effect only while the
// lock is held with this token:
//
//	still, err := etcdlock.IsOwner(ctx, client, prefix+etcdlock.Name(guard.Key()), guard.Token())
//	...
//	resp, err := client.Txn(ctx).If(still).Then(clientv3.OpPut("stock", "41")).Commit()
//	// !resp.Succeeded: the lock was lost, and nothing was written
//
// It reads once. The comparison stays valid for as long as the lock is held. If the lock is not
// held with this token now, the error is ErrNotHeld.
func IsOwner(ctx context.Context, client *clientv3.Client, name string, token int64) (clientv3.Cmp, error) {
	prefix := name + "/"
	resp, err := client.Do(ctx, whole(prefix, token))
	if err != nil {
		return clientv3.Cmp{}, classify(err)
	}
	all, _ := sift(prefix, resp.Get().Kvs, true)
	slices.Reverse(all)
	last := len(all) - 1
	if last >= 0 && all[last].CreateRevision == token && holding(prefix, all) > last {
		return createdAt(all[last]), nil
	}
	return clientv3.Cmp{}, ErrNotHeld
}
