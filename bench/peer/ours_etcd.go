package peer

import (
	"context"

	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/etcdlock"
)

type ourEtcd struct{}

func (ourEtcd) Info() Info {
	return Info{
		Name: "dlock-etcd", Title: "Genesis DLock on etcd", Backend: "etcd", Version: version(etcdClient),
		Setup: "dlock.Config{}: strict FIFO, fenced, TTL 10 s with renewal", Ours: true, Waits: true, Renews: true,
	}
}

func (ourEtcd) Open(_ context.Context, env *Env) (Client, error) {
	c, err := dialEtcd(env.Etcd)
	if err != nil {
		return nil, err
	}
	return openOurs(env, dlock.Config{}, etcdlock.New(c), c.Close)
}
