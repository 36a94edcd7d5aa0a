package topology

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ceyewan/genesis/internal/faultproxy"
	"github.com/ceyewan/genesis/internal/servers"
	"github.com/ceyewan/genesis/lab/internal/schedule"
	"github.com/ceyewan/genesis/lab/internal/worker"
)

// watched are the keyspace events that the watcher needs.
const watched = "KA"

// redisServers are servers that do not know of each other: one, or those of redlock.
// They lose nothing that they have acknowledged.
type redisServers struct {
	kind  string
	setup schedule.Setup
	nodes []*servers.Redis
	net   proxies
}

func startRedis(ctx context.Context, kind string, n int, setup schedule.Setup) (Topology, error) {
	t := &redisServers{kind: kind, setup: setup}
	for range n {
		node, err := servers.StartRedis(ctx, servers.RedisOptions{
			Args: []string{"--appendonly", "yes", "--appendfsync", "always", "--notify-keyspace-events", watched},
		})
		if err != nil {
			return nil, errors.Join(err, t.Stop())
		}
		t.nodes = append(t.nodes, node)
	}
	err := addUsers(ctx, t.nodes, kind, setup)
	if err == nil {
		t.net, err = startProxies(addrsOf(t.nodes))
	}
	if err != nil {
		return nil, errors.Join(err, t.Stop())
	}
	return t, nil
}

func addrsOf(nodes []*servers.Redis) (all []string) {
	for _, n := range nodes {
		all = append(all, n.Addr())
	}
	return all
}

func (t *redisServers) Workers() worker.Backend {
	return as(worker.Backend{Kind: t.kind, Addrs: t.net.addrs()}, t.setup)
}

func (t *redisServers) Direct() worker.Backend {
	return worker.Backend{Kind: t.kind, Addrs: addrsOf(t.nodes)}
}

func (t *redisServers) Stop() error {
	t.net.close()
	return stopAll(t.nodes)
}

func stopAll(nodes []*servers.Redis) (err error) {
	for _, n := range nodes {
		err = errors.Join(err, n.Stop())
	}
	return err
}

func (t *redisServers) Inject(ctx context.Context, f schedule.Fault) (healer, error) {
	if heal, done := t.net.inject(f); done {
		return heal, nil
	}
	node, some := t.nodes[f.Target%len(t.nodes)], t.net.choose(f.Target)
	switch f.Kind {
	case schedule.ServerPause:
		return pause(node)
	case schedule.ServerRestart:
		return func(ctx context.Context) error { return node.Restart(ctx, true) }, node.Kill()
	case schedule.ServerEmpty:
		return func(ctx context.Context) error { return node.Restart(ctx, false) }, node.Kill()
	case schedule.DropReplies:
		return dropReplies(some), nil
	case schedule.SiblingDelete: // at one of those that know nothing of each other
		return siblingDelete([]*servers.Redis{node}, t.kind, f.Target), nil
	case schedule.LateCalls:
		some.each(func(p *faultproxy.Proxy) {
			p.DeliverAfterClose(true)
			p.Intercept(late(f.For))
		})
		return some.heal, nil
	default:
		return commands(ctx, t.nodes, f)
	}
}

func dropReplies(some proxies) healer {
	again := repeat(50*time.Millisecond, func(context.Context) { some.each(func(p *faultproxy.Proxy) { p.DropReplies(3) }) })
	return func(ctx context.Context) error { return errors.Join(again(ctx), some.heal(ctx)) }
}

// late is a rule that holds some of the scripts to come, each on its own connection,
// while others pass.
func late(d time.Duration) faultproxy.Rule {
	end := time.Now().Add(d)
	var n atomic.Int64
	return func(cmd []string) faultproxy.Action {
		if cmd[0] == "EVALSHA" && n.Add(1)%7 == 0 && n.Load() < 60 {
			time.Sleep(time.Until(end))
		}
		return faultproxy.Forward
	}
}

type pausable interface {
	Pause() error
	Resume() error
}

func pause(p pausable) (healer, error) {
	return func(context.Context) error { return p.Resume() }, p.Pause()
}

// commands are faults that are made by speaking to the servers.
func commands(ctx context.Context, nodes []*servers.Redis, f schedule.Fault) (healer, error) {
	switch f.Kind {
	case schedule.ScriptFlush:
		return sayAgain(nodes, 50*time.Millisecond, "SCRIPT", "FLUSH"), nil
	case schedule.ClientKill:
		normal := sayAgain(nodes, 200*time.Millisecond, "CLIENT", "KILL", "TYPE", "normal")
		push := sayAgain(nodes, 200*time.Millisecond, "CLIENT", "KILL", "TYPE", "pubsub")
		return func(ctx context.Context) error { return errors.Join(normal(ctx), push(ctx)) }, nil
	case schedule.KeyDelete:
		key := fmt.Sprintf("%sslow-%d", worker.Prefix, f.Target%2)
		for _, n := range nodes {
			_ = say(ctx, n, "DEL", key) // where it is not, or not writable, it need not go
		}
		return nothing, nil
	case schedule.SiblingDelete:
		return siblingDelete(nodes, "single", f.Target), nil
	case schedule.ClockBack:
		return nothing, clockBack(ctx, nodes)
	default:
		return unknown(f)
	}
}

func sayAgain(nodes []*servers.Redis, every time.Duration, words ...any) healer {
	clients := make([]*redis.Client, len(nodes))
	for i, n := range nodes {
		clients[i] = n.Client()
	}
	again := repeat(every, func(ctx context.Context) {
		for _, c := range clients {
			_ = c.Do(ctx, words...).Err()
		}
	})
	return func(ctx context.Context) error {
		err := again(ctx)
		for _, c := range clients {
			_ = c.Close()
		}
		return err
	}
}

func say(ctx context.Context, n *servers.Redis, words ...any) error {
	c := n.Client()
	defer c.Close()
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	return c.Do(ctx, words...).Err()
}
