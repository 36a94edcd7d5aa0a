package servers

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/ceyewan/genesis/internal/loopback"
)

// etcdAsk limits one request to one member, which may be paused.
const etcdAsk = 500 * time.Millisecond

// An EtcdCluster is a set of etcd servers that replicate one store. Its methods may be called from
// any goroutine.
type EtcdCluster struct {
	nodes []*Etcd
}

// StartEtcdCluster starts n servers and returns when each of them serves linearizable reads, and so
// follows a leader.
func StartEtcdCluster(ctx context.Context, n int, opts EtcdOptions) (*EtcdCluster, error) {
	nodes, err := launchEtcd(ctx, n, opts)
	if err != nil {
		return nil, err
	}
	return &EtcdCluster{nodes}, nil
}

func launchEtcd(ctx context.Context, n int, opts EtcdOptions) ([]*Etcd, error) {
	binary, err := etcdBinary()
	if err != nil {
		return nil, err
	}
	return onFreePorts(ctx, "etcd", func(ctx context.Context) ([]*Etcd, error) {
		return tryEtcd(ctx, binary, n, opts)
	})
}

func tryEtcd(ctx context.Context, binary string, n int, opts EtcdOptions) ([]*Etcd, error) {
	ports, err := loopback.ReservePorts(2 * n)
	if err != nil {
		return nil, err
	}
	nodes, err := spawnEtcd(binary, ports, opts)
	if err == nil {
		err = together(ctx, nodes, func(ctx context.Context, node *Etcd) error { return node.awaitReady(ctx) })
	}
	if err == nil {
		return nodes, nil
	}
	errs := []error{err}
	for _, node := range nodes {
		errs = append(errs, node.Kill())
	}
	errs = append(errs, stopAll(nodes))
	loopback.ReleasePorts(ports) // those of servers that were not spawned
	return nil, errors.Join(errs...)
}

// spawnEtcd starts a process for each pair of ports. On an error it returns those that it started.
func spawnEtcd(binary string, ports []*loopback.Port, opts EtcdOptions) ([]*Etcd, error) {
	var names, members []string
	for pair := range slices.Chunk(ports, 2) {
		name := "etcd" + strconv.Itoa(len(names))
		names = append(names, name)
		members = append(members, name+"="+url(pair[1]))
	}
	var nodes []*Etcd
	for i, name := range names {
		client, peer, dir := ports[2*i], ports[2*i+1], opts.Dir
		if dir != "" && len(names) > 1 {
			var err error
			if dir, err = os.MkdirTemp(dir, name+"-*"); err != nil {
				return nodes, err
			}
		}
		proc, err := StartProcess(ProcessOptions{
			Path: binary,
			Args: etcdArgs(name, strings.Join(members, ","), client, peer, opts),
			Dir:  dir,
			// A leader that is asked to end tries to hand over to members that end as well, and
			// there is nothing to save.
			Abrupt: true,
		})
		if err != nil {
			return nodes, err
		}
		node := &Etcd{server{name: "etcd", proc: proc, ports: []*loopback.Port{client, peer}}, len(names) == 1}
		node.ask = node.identify
		nodes = append(nodes, node)
	}
	return nodes, nil
}

// together calls do for all nodes concurrently. The first failure cancels the other calls and is
// returned.
func together(ctx context.Context, nodes []*Etcd, do func(context.Context, *Etcd) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	errs := make(chan error, len(nodes))
	var wg sync.WaitGroup
	for _, node := range nodes {
		wg.Go(func() {
			if err := do(ctx, node); err != nil {
				errs <- err
				cancel()
			}
		})
	}
	wg.Wait()
	close(errs)
	return <-errs
}

// Nodes returns all servers, including dead ones.
func (c *EtcdCluster) Nodes() []*Etcd { return slices.Clone(c.nodes) }

// Endpoints returns the URLs of all servers.
func (c *EtcdCluster) Endpoints() []string {
	var all []string
	for _, node := range c.nodes {
		all = append(all, node.Endpoint())
	}
	return all
}

// Leader returns the server that is the leader according to itself and to a majority, including
// itself, in the same term. So it is not a server that is dead or paused, or that was and does not
// know yet that it was replaced. There is none during an election.
func (c *EtcdCluster) Leader(ctx context.Context) (*Etcd, error) {
	ctx, cancel := context.WithTimeout(ctx, etcdAsk)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	views := make(chan etcdView, len(c.nodes))
	for _, node := range c.nodes {
		wg.Go(func() {
			vars, err := node.vars(ctx)
			views <- etcdView{node, vars, err}
		})
	}
	var seen []etcdView
	for range c.nodes {
		seen = append(seen, <-views)
		if leader := agreed(seen, len(c.nodes)); leader != nil {
			return leader, nil
		}
	}
	return nil, fmt.Errorf("no leader: %v", seen)
}

// An etcdView is what one member reports about the cluster.
type etcdView struct {
	node *Etcd
	vars etcdVars
	err  error
}

func (v etcdView) String() string {
	if v.err != nil {
		return fmt.Sprintf("%s: %v", v.node.Addr(), v.err)
	}
	return fmt.Sprintf("%s: %+v", v.node.Addr(), v.vars.Raft)
}

func agreed(seen []etcdView, members int) *Etcd {
	for _, leader := range seen {
		own, votes := leader.vars.Raft, 0
		for _, v := range seen {
			if v.err == nil && v.vars.Raft.Lead == own.ID && v.vars.Raft.Term == own.Term {
				votes++
			}
		}
		if leader.err == nil && own.Lead == own.ID && votes > members/2 {
			return leader.node
		}
	}
	return nil
}

// WaitLeader waits until there is a Leader.
func (c *EtcdCluster) WaitLeader(ctx context.Context) (*Etcd, error) {
	var leader *Etcd
	err := await(ctx, "a leader", func(ctx context.Context) (err error) {
		leader, err = c.Leader(ctx)
		return err
	})
	return leader, err
}

// Restart kills all servers and starts them again together, with their data or
// as a new cluster.
func (c *EtcdCluster) Restart(ctx context.Context, keepData bool) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	for _, node := range c.nodes {
		if err := node.end(keepData); err != nil {
			return fmt.Errorf("restart etcd: %w", err)
		}
	}
	return together(ctx, c.nodes, func(ctx context.Context, node *Etcd) error { return node.startAgain(ctx) })
}

// Stop ends all processes, including paused ones.
func (c *EtcdCluster) Stop() error { return stopAll(c.nodes) }
