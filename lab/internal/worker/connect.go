package worker

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/ceyewan/genesis/internal/servers"
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
			DialKeepAliveTimeout: 3 * time.Second, Logger: zap.NewNop(),
		})
		return &Clients{Etcd: c}, err
	case "single", "sentinel", "cluster":
		o := options(b.Addrs)
		o.IsClusterMode = b.Kind == "cluster"
		if b.Kind == "sentinel" {
			o.MasterName = servers.MasterName
		}
		return &Clients{Redis: redis.NewUniversalClient(o)}, nil
	case "redlock":
		c := &Clients{}
		for i := range b.Addrs {
			c.Nodes = append(c.Nodes, redis.NewUniversalClient(options(b.Addrs[i:i+1])))
		}
		return c, nil
	}
	return nil, fmt.Errorf("no backend %q", b.Kind)
}

func options(addrs []string) *redis.UniversalOptions {
	return &redis.UniversalOptions{
		Addrs: addrs, MaxRetries: -1, DialTimeout: 5 * time.Second, DialerRetries: 1,
		ReadTimeout: 3 * time.Second, WriteTimeout: 3 * time.Second, ContextTimeoutEnabled: true, DisableIdentity: true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
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
