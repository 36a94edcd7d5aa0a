package topology

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/ceyewan/genesis/internal/faultproxy"
	"github.com/ceyewan/genesis/internal/servers"
	"github.com/ceyewan/genesis/lab/internal/schedule"
	"github.com/ceyewan/genesis/lab/internal/worker"
)

// etcd is a cluster of one or three.
type etcd struct {
	*servers.EtcdCluster
	setup   schedule.Setup
	net     proxies
	control *clientv3.Client
}

func startEtcd(ctx context.Context, n int, setup schedule.Setup) (Topology, error) {
	// Passwords that are cheap to check leave the processor to the trial.
	c, err := servers.StartEtcdCluster(ctx, n, servers.EtcdOptions{Args: []string{"--bcrypt-cost", "4"}})
	if err != nil {
		return nil, err
	}
	t := &etcd{EtcdCluster: c}
	if err = t.addRole(ctx, setup); err != nil {
		return nil, errors.Join(err, t.Stop())
	}
	var addrs []string
	for _, node := range c.Nodes() {
		addrs = append(addrs, node.Addr())
	}
	if t.net, err = startProxies(addrs); err != nil {
		return nil, errors.Join(err, t.Stop())
	}
	clients, err := worker.Connect(t.Direct())
	if err != nil {
		return nil, errors.Join(err, t.Stop())
	}
	t.control = clients.Etcd
	return t, nil
}

// addRole switches users on, if the setup has any.
func (t *etcd) addRole(ctx context.Context, setup schedule.Setup) error {
	if setup.Rights == schedule.AllRights {
		return nil
	}
	clients, err := worker.Connect(t.Direct())
	if err != nil {
		return err
	}
	defer clients.Close()
	t.setup = setup
	return addRole(ctx, clients.Etcd)
}

func (t *etcd) Workers() worker.Backend {
	return as(worker.Backend{Kind: "etcd", Addrs: t.net.addrs()}, t.setup)
}

func (t *etcd) Direct() worker.Backend {
	b := worker.Backend{Kind: "etcd", Addrs: t.Endpoints()}
	if t.setup.Rights != schedule.AllRights {
		b.User, b.Password = root, password
	}
	return b
}

func (t *etcd) Stop() error {
	if t.control != nil {
		_ = t.control.Close()
	}
	t.net.close()
	return t.EtcdCluster.Stop()
}

// txn is the call that submits and removes claims.
const txn = "/etcdserverpb.KV/Txn"

func (t *etcd) Inject(ctx context.Context, f schedule.Fault) (healer, error) {
	if heal, done := t.net.inject(f); done {
		return heal, nil
	}
	node, some := t.Nodes()[f.Target%len(t.Nodes())], t.net.choose(f.Target)
	switch f.Kind {
	case schedule.ServerPause:
		return pause(node)
	case schedule.ServerRestart:
		return func(ctx context.Context) error { return node.Restart(ctx, true) }, node.Kill()
	case schedule.LeaderKill, schedule.LeaderPause, schedule.Beheading:
		leader, err := t.WaitLeader(ctx)
		if err != nil {
			return nil, err
		}
		if f.Kind == schedule.LeaderPause {
			return pause(leader)
		}
		return func(ctx context.Context) error { return leader.Restart(ctx, true) }, leader.Kill()
	case schedule.DropReplies:
		again := repeat(200*time.Millisecond, func(context.Context) { some.each(func(p *faultproxy.Proxy) { p.DropGRPC(txn, 1) }) })
		return func(ctx context.Context) error { return errors.Join(again(ctx), some.heal(ctx)) }, nil
	case schedule.LateCalls:
		some.each(func(p *faultproxy.Proxy) { p.HoldGRPC(txn, 4) })
		return some.heal, nil
	default:
		return t.command(ctx, f)
	}
}

// command makes the faults of an operator.
func (t *etcd) command(ctx context.Context, f schedule.Fault) (healer, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	switch f.Kind {
	case schedule.Compact:
		return repeat(100*time.Millisecond, t.compact), nil
	case schedule.LeaseRevoke:
		all, err := t.control.Leases(ctx)
		if err != nil || len(all.Leases) == 0 {
			return nothing, err
		}
		_, err = t.control.Revoke(ctx, all.Leases[f.Target%len(all.Leases)].ID)
		return nothing, ignoreGone(err)
	case schedule.KeyDelete:
		line := fmt.Sprintf("%sslow-%d/", worker.Prefix, f.Target%2)
		first, err := t.control.Get(ctx, line, append(clientv3.WithFirstCreate(), clientv3.WithPrefix())...)
		if err != nil || len(first.Kvs) == 0 {
			return nothing, err
		}
		_, err = t.control.Delete(ctx, string(first.Kvs[0].Key))
		return nothing, err
	default:
		return unknown(f)
	}
}

func (t *etcd) compact(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	if now, err := t.control.Get(ctx, "any"); err == nil {
		_, _ = t.control.Compact(ctx, now.Header.Revision)
	}
}

// ignoreGone is for a lease that ended between the look and the blow.
func ignoreGone(err error) error {
	if err != nil && strings.Contains(err.Error(), "lease not found") {
		return nil
	}
	return err
}
