package topology

import (
	"context"
	"errors"
	"time"

	"github.com/ceyewan/genesis/internal/servers"
	"github.com/ceyewan/genesis/lab/internal/schedule"
	"github.com/ceyewan/genesis/lab/internal/worker"
)

// sentinel is a master with two replicas under three sentinels. It announces its own
// addresses, so clients go there without a proxy.
type sentinel struct {
	*servers.Sentinel
	setup schedule.Setup
}

// patience is how long sentinels, and nodes of a cluster, wait before they depose a
// silent master. Inside the assumptions there is no failover, however busy the
// machine.
func patience(mode schedule.Mode) string {
	if mode != schedule.Beyond {
		return "20000"
	}
	return "1000"
}

func startSentinel(ctx context.Context, mode schedule.Mode, setup schedule.Setup) (Topology, error) {
	s, err := servers.StartSentinel(ctx, 2)
	if err != nil {
		return nil, err
	}
	t := &sentinel{s, setup}
	for _, n := range s.Sentinels() {
		err = errors.Join(err, say(ctx, n, "SENTINEL", "SET", servers.MasterName, "down-after-milliseconds", patience(mode)))
	}
	if err = errors.Join(err, watch(ctx, s.Nodes()), addUsers(ctx, s.Nodes(), "sentinel", setup)); err != nil {
		return nil, errors.Join(err, t.Stop())
	}
	return t, nil
}

// watch makes servers publish changes to their keys.
func watch(ctx context.Context, nodes []*servers.Redis) (err error) {
	for _, n := range nodes {
		err = errors.Join(err, say(ctx, n, "CONFIG", "SET", "notify-keyspace-events", watched))
	}
	return err
}

func (t *sentinel) Workers() worker.Backend {
	return as(t.Direct(), t.setup)
}

func (t *sentinel) Direct() worker.Backend {
	return worker.Backend{Kind: "sentinel", Addrs: t.SentinelAddrs()}
}

// Nodes are where the watcher listens.
func (t *sentinel) NodeAddrs() []string { return addrsOf(t.Nodes()) }

func (t *sentinel) Inject(ctx context.Context, f schedule.Fault) (healer, error) {
	switch f.Kind {
	case schedule.ServerPause:
		master, err := t.Master(ctx)
		if err != nil {
			return nil, err
		}
		return pause(master)
	case schedule.Failover:
		old, err := t.KillMaster(ctx)
		return func(ctx context.Context) error { return t.comeBack(ctx, old) }, err
	case schedule.ForcedFailover:
		return nothing, t.failOver(ctx)
	default:
		return commands(ctx, t.Nodes(), f)
	}
}

// comeBack waits for the new master and brings back the old one as its replica.
func (t *sentinel) comeBack(ctx context.Context, old *servers.Redis) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	_, err := t.AwaitFailover(ctx, old)
	err = errors.Join(err, old.Restart(ctx, true))
	if err != nil {
		return err
	}
	return watch(ctx, []*servers.Redis{old})
}

// failOver tells a sentinel to replace the master, and waits until the old one follows the
// new: until then it has gone on working.
func (t *sentinel) failOver(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 40*time.Second)
	defer cancel()
	old, err := t.Master(ctx)
	if err != nil {
		return err
	}
	// It is refused as long as the last failover is not over.
	err = until(ctx, "SENTINEL FAILOVER", func() bool {
		return say(ctx, t.Sentinels()[0], "SENTINEL", "FAILOVER", servers.MasterName) == nil
	})
	if err != nil {
		return err
	}
	_, err = t.AwaitFailover(ctx, old)
	if err != nil {
		return err
	}
	return awaitRole(ctx, old, "slave")
}
