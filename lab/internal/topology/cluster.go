package topology

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/ceyewan/genesis/internal/servers"
	"github.com/ceyewan/genesis/lab/internal/schedule"
	"github.com/ceyewan/genesis/lab/internal/worker"
)

// cluster is a Redis Cluster of three masters, beyond the assumptions with a replica
// each. It announces its own addresses, so clients go there without a proxy.
type cluster struct{ *servers.Cluster }

func startCluster(ctx context.Context, mode schedule.Mode) (Topology, error) {
	replicas := 0
	if mode == schedule.Beyond {
		replicas = 1
	}
	c, err := servers.StartCluster(ctx, replicas)
	if err != nil {
		return nil, err
	}
	t := &cluster{c}
	for _, n := range c.Nodes() {
		err = errors.Join(err, say(ctx, n, "CONFIG", "SET", "cluster-node-timeout", patience(mode)))
	}
	if err = errors.Join(err, watch(ctx, c.Nodes())); err != nil {
		return nil, errors.Join(err, t.Stop())
	}
	return t, nil
}

func (t *cluster) Workers() worker.Backend {
	return worker.Backend{Kind: "cluster", Addrs: t.Addrs()}
}

func (t *cluster) Direct() worker.Backend { return t.Workers() }

// NodeAddrs are where the watcher listens.
func (t *cluster) NodeAddrs() []string { return t.Addrs() }

func (t *cluster) Inject(ctx context.Context, f schedule.Fault) (healer, error) {
	masters, err := t.Masters(ctx)
	if err != nil || len(masters) < 3 {
		return nil, fmt.Errorf("%d masters: %w", len(masters), err)
	}
	node := masters[f.Target%len(masters)]
	switch f.Kind {
	case schedule.ServerPause:
		return pause(node)
	case schedule.Failover:
		return func(ctx context.Context) error { return t.comeBack(ctx, node) }, node.Kill()
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

// comeBack waits until a replica serves in the place of a dead master, and brings
// that one back as a replica.
func (t *cluster) comeBack(ctx context.Context, old *servers.Redis) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	if err := until(ctx, "failover in the cluster", func() bool { return t.whole(ctx, 3) }); err != nil {
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
