package worker

import (
	"context"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/ceyewan/genesis/internal/servers"
	"github.com/ceyewan/genesis/lab/internal/schedule"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/etcdlock"
	"github.com/ceyewan/genesis/pkg/dlock/redislock"
	"github.com/ceyewan/genesis/pkg/dlock/redlock"
)

// silence drops what go-redis prints about servers that are down: that they are is
// the purpose here.
type silence struct{}

func (silence) Printf(context.Context, string, ...any) {}

func init() { redis.SetLogger(silence{}) }

// Clients are the connections to the servers of a topology, with the same settings
// as those that pkg/connector makes.
type Clients struct {
	Redis redis.UniversalClient
	Nodes []redis.UniversalClient // of redlock
	Etcd  *clientv3.Client
}

// Connect makes the clients of a backend. It does no I/O.
func Connect(b Backend) (*Clients, error) {
	switch b.Kind {
	case "etcd":
		c, err := clientv3.New(clientv3.Config{
			Endpoints: b.Addrs, DialTimeout: 5 * time.Second, DialKeepAliveTime: 5 * time.Second,
			DialKeepAliveTimeout: 3 * time.Second, Logger: zap.NewNop(), Username: b.User, Password: b.Password,
		})
		return &Clients{Etcd: c}, err
	case "single":
		return &Clients{Redis: redis.NewUniversalClient(options(b, b.Addrs))}, nil
	case "sentinel":
		o := options(b, b.Addrs)
		o.MasterName = servers.MasterName
		return &Clients{Redis: redis.NewUniversalClient(o)}, nil
	case "cluster":
		return &Clients{Redis: clusterClient(b)}, nil
	case "redlock":
		c := &Clients{}
		for i := range b.Addrs {
			c.Nodes = append(c.Nodes, redis.NewUniversalClient(options(b, b.Addrs[i:i+1])))
		}
		return c, nil
	}
	return nil, fmt.Errorf("no backend %q", b.Kind)
}

func options(b Backend, addrs []string) *redis.UniversalOptions {
	return &redis.UniversalOptions{
		Addrs: addrs, Username: b.User, Password: b.Password, MaxRetries: -1, DialTimeout: 5 * time.Second, DialerRetries: 1,
		ReadTimeout: 3 * time.Second, WriteTimeout: 3 * time.Second, ContextTimeoutEnabled: true, DisableIdentity: true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	}
}

// clusterClient goes through proxies, and reads where its routing says.
func clusterClient(b Backend) *redis.ClusterClient {
	o := options(b, b.Addrs).Cluster()
	o.ReadOnly = b.Routing == schedule.ReadOnly
	o.RouteByLatency = b.Routing == schedule.ByLatency
	o.RouteRandomly = b.Routing == schedule.Randomly
	// go-redis 9.23 measures a latency while it still sets up the node, which is a data
	// race: so no node is dialed before it is complete.
	complete := &gates{open: map[string]chan struct{}{}}
	o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
		if o.RouteByLatency {
			select {
			case <-complete.of(addr):
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}
		if via, ok := b.Via[addr]; ok {
			addr = via
		}
		return (&net.Dialer{Timeout: 5 * time.Second}).DialContext(ctx, network, addr)
	}
	c := redis.NewClusterClient(o)
	if o.RouteByLatency {
		c.OnNewNode(func(node *redis.Client) { complete.pass(node.Options().Addr) })
	}
	return c
}

// gates are passed when a node is complete. A node that was dropped and made again has
// passed already.
type gates struct {
	mu   sync.Mutex
	open map[string]chan struct{}
}

func (g *gates) of(addr string) chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.open[addr] == nil {
		g.open[addr] = make(chan struct{})
	}
	return g.open[addr]
}

func (g *gates) pass(addr string) {
	gate := g.of(addr)
	g.mu.Lock()
	defer g.mu.Unlock()
	select {
	case <-gate:
	default:
		close(gate)
	}
}

// Locks is the backend of locks on these clients.
func (c *Clients) Locks() driver.Opener {
	switch {
	case c.Etcd != nil:
		return etcdlock.New(c.Etcd)
	case c.Nodes != nil:
		return redlock.New(c.Nodes)
	}
	return redislock.New(c.Redis)
}

// Close ends the connections. Its errors say nothing about locks.
func (c *Clients) Close() {
	var all []io.Closer
	if c.Redis != nil {
		all = append(all, c.Redis)
	}
	if c.Etcd != nil {
		all = append(all, c.Etcd)
	}
	for _, n := range c.Nodes {
		all = append(all, n)
	}
	for _, one := range all {
		_ = one.Close()
	}
}
