package peer

import (
	"context"
	"errors"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// rawEtcd is the floor of a lock on etcd: put if absent, and delete.
type rawEtcd struct{}

func (rawEtcd) Info() Info {
	return Info{
		Name: "raw-etcd", Title: "floor: raw txn + delete", Backend: "etcd", Version: version(etcdClient),
		Setup: "a transaction that puts if absent, on a lease that all locks of the client share, and a delete", Floor: true,
	}
}

func (rawEtcd) Open(ctx context.Context, env *Env) (Client, error) {
	c, err := dialEtcd(env.Etcd)
	if err != nil {
		return nil, err
	}
	lease, err := c.Grant(ctx, 3600)
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return &rawEtcdClient{c, lease.ID}, nil
}

type rawEtcdClient struct {
	client *clientv3.Client
	lease  clientv3.LeaseID
}

func (c *rawEtcdClient) Lock(ctx context.Context, key string) (Lock, error) {
	resp, err := c.client.Txn(ctx).If(clientv3.Compare(clientv3.CreateRevision(key), "=", 0)).
		Then(clientv3.OpPut(key, ownValue, clientv3.WithLease(c.lease))).Commit()
	if err == nil && !resp.Succeeded {
		err = errBusy
	}
	if err != nil {
		return nil, err
	}
	return rawEtcdLock{c.client, key}, nil
}

func (c *rawEtcdClient) Close() error { return c.client.Close() }

type rawEtcdLock struct {
	client *clientv3.Client
	key    string
}

func (l rawEtcdLock) Unlock(ctx context.Context) error {
	resp, err := l.client.Delete(ctx, l.key)
	if err == nil && resp.Deleted == 0 {
		err = errLost
	}
	return err
}
