package etcdlock

import (
	"context"
	"errors"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// ErrNotHeld: the lock is not held with this token any more.
var ErrNotHeld = errors.New("the lock is not held with this token")

// Owner returns the comparison by which a transaction of your own takes effect only
// while the lock is held with this token:
//
//	still, err := etcdlock.Owner(ctx, client, prefix+etcdlock.Name(guard.Key()), guard.Token())
//	...
//	resp, err := client.Txn(ctx).If(still).Then(clientv3.OpPut("stock", "41")).Commit()
//	// !resp.Succeeded: the lock was lost, and nothing was written
//
// It reads once, and holds good for as long as the lock does. If the lock is not
// held with this token now, the error is ErrNotHeld.
func Owner(ctx context.Context, client *clientv3.Client, name string, token int64) (clientv3.Cmp, error) {
	line := name + "/"
	resp, err := client.Do(ctx, whole(line, token))
	if err != nil {
		return clientv3.Cmp{}, classify(err)
	}
	if all, _ := sift(line, resp.Get().Kvs, true); len(all) == 1 && all[0].CreateRevision == token {
		return createdAt(all[0]), nil
	}
	return clientv3.Cmp{}, ErrNotHeld
}
