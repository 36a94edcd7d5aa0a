package topology

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ceyewan/genesis/internal/servers"
	"github.com/ceyewan/genesis/lab/internal/schedule"
	"github.com/ceyewan/genesis/lab/internal/worker"
)

// cluster is a Redis Cluster of three masters with a replica each. Its nodes announce their
// own addresses; workers go to each through a proxy all the same.
type cluster struct {
	*servers.Cluster
	setup schedule.Setup
	mode  schedule.Mode
	net   proxies
}

func startCluster(ctx context.Context, mode schedule.Mode, setup schedule.Setup) (Topology, error) {
	replicas := 1
	if mode == schedule.Kills || mode == schedule.Calm {
		replicas = 0
	}
	c, err := servers.StartCluster(ctx, replicas)
	if err != nil {
		return nil, err
	}
	t := &cluster{Cluster: c, setup: setup, mode: mode}
	t.net, err = startProxies(c.Addrs())
	for _, n := range c.Nodes() {
		err = errors.Join(err, say(ctx, n, "CONFIG", "SET", "cluster-node-timeout", patience(mode)))
	}
	if err = errors.Join(err, watch(ctx, c.Nodes()), addUsers(ctx, c.Nodes(), "cluster", setup)); err != nil {
		return nil, errors.Join(err, t.Stop())
	}
	return t, nil
}

func (t *cluster) Workers() worker.Backend {
	b := as(t.Direct(), t.setup)
	if t.mode == schedule.Kills || t.mode == schedule.Calm { // they measure times, without proxies
		return b
	}
	b.Routing, b.Via = t.setup.Routing, map[string]string{}
	for i, addr := range t.Addrs() {
		b.Via[addr] = t.net[i].Addr()
	}
	return b
}

func (t *cluster) Direct() worker.Backend {
	return worker.Backend{Kind: "cluster", Addrs: t.Addrs()}
}

func (t *cluster) Stop() error {
	t.net.close()
	return t.Cluster.Stop()
}

// NodeAddrs are where the watcher listens.
func (t *cluster) NodeAddrs() []string { return t.Addrs() }

func (t *cluster) Inject(ctx context.Context, f schedule.Fault) (healer, error) {
	masters, err := t.Masters(ctx)
	if err != nil || len(masters) < schedule.Shards {
		return nil, fmt.Errorf("%d masters: %w", len(masters), err)
	}
	node := masters[f.Target%len(masters)]
	switch f.Kind {
	case schedule.ServerPause:
		return pause(node)
	case schedule.Failover:
		return func(ctx context.Context) error { return t.comeBack(ctx, node) }, node.Kill()
	case schedule.PlannedFailover:
		return t.failOver(ctx, node)
	case schedule.MasterStall, schedule.FarMaster:
		return t.oneMaster(ctx, f)
	case schedule.SlotMigration:
		return t.migrate(ctx, masters, f.Target)
	default:
		return commands(ctx, t.Nodes(), f)
	}
}

// migrate moves the slot of a slow key away, and back when it is healed.
func (t *cluster) migrate(ctx context.Context, masters []*servers.Redis, target int) (healer, error) {
	slot, err := t.Slot(ctx, fmt.Sprintf("%sslow-%d", worker.Prefix, target%2))
	if err != nil {
		return nil, err
	}
	from, err := t.Owner(ctx, slot)
	if err != nil {
		return nil, err
	}
	to := masters[0]
	if to == from {
		to = masters[1]
	}
	return func(ctx context.Context) error { return t.MigrateSlot(ctx, slot, to, from) }, t.MigrateSlot(ctx, slot, from, to)
}

// oneMaster disturbs the master of one shard.
func (t *cluster) oneMaster(ctx context.Context, f schedule.Fault) (healer, error) {
	node, err := t.Owner(ctx, schedule.FirstSlot(f.ShardOf()))
	if err != nil {
		return nil, err
	}
	if f.Kind == schedule.MasterStall {
		return pause(node)
	}
	near := t.net[slices.Index(t.Nodes(), node)]
	near.Delay(f.Param/2, f.Param/2)
	return func(context.Context) error { near.Heal(); return nil }, nil
}

// failOver has the replica of a master take over when it has everything. Other masters vote
// for replicas of one master once in two node timeouts.
func (t *cluster) failOver(ctx context.Context, master *servers.Redis) (healer, error) {
	ctx, cancel := context.WithTimeout(ctx, 40*time.Second)
	defer cancel()
	replica, err := t.replicaOf(ctx, master)
	if err != nil {
		return nil, err
	}
	if err = awaitRole(ctx, replica, "slave"); err != nil {
		return nil, err
	}
	if err = t.patience(ctx, "2000"); err != nil {
		return nil, err
	}
	heal := func(ctx context.Context) error {
		err := errors.Join(awaitRole(ctx, master, "slave"), t.patience(ctx, patience(t.mode)))
		return errors.Join(err, until(ctx, "the cluster is whole", func() bool { return t.whole(ctx, schedule.Shards) }))
	}
	c := replica.Client()
	defer c.Close()
	var asked time.Time
	return heal, until(ctx, "planned failover in the cluster", func() bool {
		if time.Since(asked) > 6*time.Second { // after 5 s without votes the replica has given up
			_ = c.Do(ctx, "CLUSTER", "FAILOVER").Err()
			asked = time.Now()
		}
		info, err := c.Info(ctx, "replication").Result()
		return err == nil && strings.Contains(info, "role:master")
	})
}

// patience sets when nodes take another one for failed.
func (t *cluster) patience(ctx context.Context, ms string) (err error) {
	for _, n := range t.Nodes() {
		err = errors.Join(err, say(ctx, n, "CONFIG", "SET", "cluster-node-timeout", ms))
	}
	return err
}

// replicaOf finds the replica of a master by its own account.
func (t *cluster) replicaOf(ctx context.Context, master *servers.Redis) (*servers.Redis, error) {
	c := master.Client()
	defer c.Close()
	info, err := c.Info(ctx, "replication").Result()
	if err != nil {
		return nil, err
	}
	for _, n := range t.Nodes() {
		if _, port, _ := strings.Cut(n.Addr(), ":"); n != master && strings.Contains(info, "port="+port+",") {
			return n, nil
		}
	}
	return nil, fmt.Errorf("the master %s has no replica: %s", master.Addr(), info)
}

// comeBack waits until a replica serves in the place of a dead master, and brings
// that one back as a replica.
func (t *cluster) comeBack(ctx context.Context, old *servers.Redis) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	if err := until(ctx, "failover in the cluster", func() bool { return t.whole(ctx, schedule.Shards) }); err != nil {
		return err
	}
	if err := old.Restart(ctx, true); err != nil {
		return err
	}
	return watch(ctx, []*servers.Redis{old})
}

// whole says whether so many running masters all call the cluster complete.
func (t *cluster) whole(ctx context.Context, n int) bool {
	masters, err := t.Masters(ctx)
	if err != nil || len(masters) < n {
		return false
	}
	for _, m := range masters {
		c := m.Client()
		info, err := c.ClusterInfo(ctx).Result()
		_ = c.Close()
		if err != nil || !strings.Contains(info, "cluster_state:ok") {
			return false
		}
	}
	return true
}
