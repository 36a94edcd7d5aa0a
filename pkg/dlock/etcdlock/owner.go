package etcdlock

import (
	"context"
	"slices"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// LeaseOf returns the lease of a lock that was acquired dlock.WithOwnLease. Attach keys to it that must not outlive the
// lock, such as the address at which its holder can be reached:
//
//	lease, err := etcdlock.LeaseOf(guard)
//	...
//	_, err = client.Put(ctx, "address", "10.0.0.7:8080", clientv3.WithLease(lease))
//
// After the lock was released, the lease is revoked in the background, and etcd deletes the keys. Until then, another holder
// may see them. If the holder dies, they are deleted together with the lock.
func LeaseOf(guard interface{ LeaseID() (int64, error) }) (clientv3.LeaseID, error) {
	id, err := guard.LeaseID()
	return clientv3.LeaseID(id), err
}

// LeaseID returns the lease of a claim that does not share it.
func (d *etcdDriver) LeaseID(r driver.Ref) (int64, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	c := d.claims[r.ID]
	if c == nil || c.key != r.Key || !c.ownLease {
		return 0, false
	}
	return int64(c.lease.id), true
}

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
