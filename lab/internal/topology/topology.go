// Package topology starts the servers of a trial and does to them what a schedule
// says.
package topology

import (
	"context"
	"fmt"
	"time"

	"github.com/ceyewan/genesis/internal/faultproxy"
	"github.com/ceyewan/genesis/lab/internal/schedule"
	"github.com/ceyewan/genesis/lab/internal/worker"
)

// A Topology is some servers that make one backend of locks.
type Topology interface {
	// Workers is how workers reach it, through proxies where there are any.
	Workers() worker.Backend
	// Direct is how the lab itself does.
	Direct() worker.Backend
	// Inject begins a fault. What it returns ends it, and returns when the servers
	// are well again.
	Inject(ctx context.Context, f schedule.Fault) (heal func(context.Context) error, err error)
	Stop() error
}

// Start starts the servers of a topology as a mode and a setup need them.
func Start(ctx context.Context, name string, mode schedule.Mode, setup schedule.Setup) (Topology, error) {
	switch name {
	case schedule.Single:
		return startRedis(ctx, "single", 1, setup)
	case schedule.Replicated:
		return startReplicated(ctx, setup)
	case schedule.Redlock3:
		return startRedis(ctx, "redlock", 3, setup)
	case schedule.Redlock5:
		return startRedis(ctx, "redlock", 5, setup)
	case schedule.Sentinel:
		return startSentinel(ctx, mode, setup)
	case schedule.Cluster:
		return startCluster(ctx, mode, setup)
	case schedule.Etcd1:
		return startEtcd(ctx, 1, setup)
	case schedule.Etcd3:
		return startEtcd(ctx, 3, setup)
	}
	return nil, fmt.Errorf("there is no topology %q", name)
}

// A healer ends a fault.
type healer = func(context.Context) error

// repeat does something at once and then every so often until it is healed. What
// it meets while servers are disturbed is no error.
func repeat(every time.Duration, do func(context.Context)) healer {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		t := time.NewTicker(every)
		defer t.Stop()
		for {
			do(ctx)
			select {
			case <-t.C:
			case <-ctx.Done():
				return
			}
		}
	}()
	return func(context.Context) error {
		cancel()
		<-done
		return nil
	}
}

// until polls a condition.
func until(ctx context.Context, what string, cond func() bool) error {
	for !cond() {
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: %w", what, ctx.Err())
		case <-time.After(20 * time.Millisecond):
		}
	}
	return nil
}

// unknown is the answer to a fault that a topology has no way to make.
func unknown(f schedule.Fault) (healer, error) {
	return nil, fmt.Errorf("the fault %s cannot be made here", f.Kind)
}

func nothing(context.Context) error { return nil }

// proxies are the network of a topology.
type proxies []*faultproxy.Proxy

func startProxies(addrs []string) (all proxies, err error) {
	for _, a := range addrs {
		p, err := faultproxy.Start(a)
		if err != nil {
			return nil, err
		}
		all = append(all, p)
	}
	return all, nil
}

func (ps proxies) addrs() (all []string) {
	for _, p := range ps {
		all = append(all, p.Addr())
	}
	return all
}

// choose returns one proxy, or all of them.
func (ps proxies) choose(target int) proxies {
	if schedule.StrikesAll(target, len(ps)) {
		return ps
	}
	i := target % (len(ps) + 1)
	return ps[i : i+1]
}

func (ps proxies) each(do func(*faultproxy.Proxy)) {
	for _, p := range ps {
		do(p)
	}
}

func (ps proxies) heal(context.Context) error {
	ps.each((*faultproxy.Proxy).Heal)
	return nil
}

// inject makes the faults that are the same for every protocol.
func (ps proxies) inject(f schedule.Fault) (healer, bool) {
	some := ps.choose(f.Target)
	switch f.Kind {
	case schedule.Delay:
		some.each(func(p *faultproxy.Proxy) { p.Delay(f.Param, f.Param) })
	case schedule.BlackHole:
		some.each(func(p *faultproxy.Proxy) { p.BlackHole(true) })
	case schedule.ReplyHole:
		some.each(func(p *faultproxy.Proxy) { p.BlackHoleDown(true) })
	case schedule.Mute:
		some.each(func(p *faultproxy.Proxy) { p.DropMessages(true) })
	case schedule.Cut:
		return repeat(150*time.Millisecond, func(context.Context) { some.each((*faultproxy.Proxy).Cut) }), true
	case schedule.LagHole:
		some.each(func(p *faultproxy.Proxy) { p.Delay(0, f.Param) })
		hole := time.AfterFunc(f.For*2/5, func() { some.each(func(p *faultproxy.Proxy) { p.BlackHole(true) }) })
		return func(ctx context.Context) error {
			hole.Stop()
			return some.heal(ctx)
		}, true
	default:
		return nil, false
	}
	return some.heal, true
}

func (ps proxies) close() {
	for _, p := range ps {
		_ = p.Close()
	}
}
