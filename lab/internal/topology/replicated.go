package topology

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/ceyewan/genesis/internal/faultproxy"
	"github.com/ceyewan/genesis/internal/servers"
	"github.com/ceyewan/genesis/lab/internal/schedule"
	"github.com/ceyewan/genesis/lab/internal/worker"
)

// replicated is a master with a replica behind one address, which follows the master. Open
// connections stay with the server that they lead to.
type replicated struct {
	setup   schedule.Setup
	nodes   []*servers.Redis
	net     proxies // of workers
	lookout proxies // of the lab, without faults

	mu     sync.Mutex
	master int
}

func startReplicated(ctx context.Context, setup schedule.Setup) (Topology, error) {
	t := &replicated{setup: setup}
	if err := t.start(ctx); err != nil {
		return nil, errors.Join(err, t.Stop())
	}
	return t, nil
}

func (t *replicated) start(ctx context.Context) (err error) {
	for range 2 {
		node, err := servers.StartRedis(ctx, servers.RedisOptions{Args: []string{"--notify-keyspace-events", watched}})
		if err != nil {
			return err
		}
		t.nodes = append(t.nodes, node)
	}
	if err = addUsers(ctx, t.nodes, "single", t.setup); err != nil {
		return err
	}
	if err = t.follow(ctx, t.nodes[1], t.nodes[0]); err != nil {
		return err
	}
	if t.net, err = startProxies([]string{t.nodes[0].Addr()}); err != nil {
		return err
	}
	t.lookout, err = startProxies([]string{t.nodes[0].Addr()})
	return err
}

// follow makes one server the replica of another, and waits until it is in sync.
func (t *replicated) follow(ctx context.Context, replica, master *servers.Redis) error {
	host, port, err := net.SplitHostPort(master.Addr())
	if err != nil {
		return err
	}
	if err = say(ctx, replica, "REPLICAOF", host, port); err != nil {
		return err
	}
	return inSync(ctx, replica, master)
}

// inSync waits until a server is a replica, and its master knows that: before, the master passes nothing on to it.
func inSync(ctx context.Context, replica, master *servers.Redis) error {
	if err := awaitRole(ctx, replica, "slave"); err != nil {
		return err
	}
	c := master.Client()
	defer c.Close()
	return until(ctx, fmt.Sprintf("%s has a replica", master.Addr()), func() bool {
		info, err := c.Info(ctx, "replication").Result()
		return err == nil && strings.Contains(info, "state=online")
	})
}

// awaitRole waits until a server is a master, or a replica that is in sync.
func awaitRole(ctx context.Context, node *servers.Redis, role string) error {
	c := node.Client()
	defer c.Close()
	return until(ctx, fmt.Sprintf("%s is a %s in sync", node.Addr(), role), func() bool {
		info, err := c.Info(ctx, "replication").Result()
		return err == nil && strings.Contains(info, "role:"+role) && !strings.Contains(info, "master_link_status:down")
	})
}

func (t *replicated) Workers() worker.Backend {
	return as(worker.Backend{Kind: "single", Addrs: t.net.addrs()}, t.setup)
}

func (t *replicated) Direct() worker.Backend {
	return worker.Backend{Kind: "single", Addrs: t.lookout.addrs()}
}

// NodeAddrs are where the watcher listens.
func (t *replicated) NodeAddrs() []string { return addrsOf(t.nodes) }

func (t *replicated) Stop() error {
	t.net.close()
	t.lookout.close()
	return stopAll(t.nodes)
}

func (t *replicated) roles() (master, replica *servers.Redis) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.nodes[t.master], t.nodes[1-t.master]
}

// swap has the address lead to the other server.
func (t *replicated) swap() {
	t.mu.Lock()
	t.master = 1 - t.master
	addr := t.nodes[t.master].Addr()
	t.mu.Unlock()
	t.net.each(func(p *faultproxy.Proxy) { p.Retarget(addr) })
	t.lookout.each(func(p *faultproxy.Proxy) {
		p.Retarget(addr)
		p.Cut()
	})
}

func (t *replicated) Inject(ctx context.Context, f schedule.Fault) (healer, error) {
	if heal, done := t.net.inject(f); done {
		return heal, nil
	}
	master, replica := t.roles()
	switch f.Kind {
	case schedule.ServerPause:
		return pause(master)
	case schedule.DropReplies:
		return dropReplies(t.net), nil
	case schedule.PlannedFailover:
		return t.failOver(ctx, master, replica)
	case schedule.Failover:
		if err := master.Kill(); err != nil {
			return nil, err
		}
		return func(ctx context.Context) error { return t.comeBack(ctx, master, replica) }, nil
	default:
		return commands(ctx, t.nodes, f)
	}
}

// failOver has the replica take over when it has everything.
func (t *replicated) failOver(ctx context.Context, master, replica *servers.Redis) (healer, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	host, port, err := net.SplitHostPort(replica.Addr())
	if err != nil {
		return nil, err
	}
	if err = say(ctx, master, "FAILOVER", "TO", host, port); err != nil {
		return nil, err
	}
	if err = awaitRole(ctx, replica, "master"); err != nil {
		return nil, err
	}
	t.swap()
	return func(ctx context.Context) error { return inSync(ctx, master, replica) }, nil
}

// comeBack promotes the replica of a dead master, and brings that one back as a replica.
func (t *replicated) comeBack(ctx context.Context, old, promoted *servers.Redis) error {
	if err := say(ctx, promoted, "REPLICAOF", "NO", "ONE"); err != nil {
		return err
	}
	t.swap()
	if err := old.Restart(ctx, true); err != nil {
		return err
	}
	return t.follow(ctx, old, promoted)
}
