package connector_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ceyewan/genesis/internal/servers"
	"github.com/ceyewan/genesis/pkg/connector"
	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/redislock"
	"github.com/ceyewan/genesis/pkg/dlock/redlock"
)

func newRedlock(t *testing.T, cfg connector.RedlockConfig, opts ...connector.Option) *connector.Redlock {
	t.Helper()
	c, err := connector.NewRedlock(&cfg, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeOnce(t, c) })
	return c
}

func TestRedlockConfig(t *testing.T) {
	three := []string{"a:1", "b:1", "c:1"}
	for field, cfg := range map[string]connector.RedlockConfig{
		"Addrs are 0":    {},
		"Addrs are 2":    {Addrs: three[:2]},
		"Addrs are 4":    {Addrs: []string{"a:1", "b:1", "c:1", "d:1"}},
		"Addrs[1] is no": {Addrs: []string{"a:1", "redis://u:" + password + "@b:1", "c:1"}},
		"Addrs[2] is th": {Addrs: []string{"a:1", "b:1", "a:1"}},
		"Username":       {Addrs: three, Username: "u"},
		"DB -1":          {Addrs: three, DB: -1},
		"ConnectTimeout": {Addrs: three, ConnectTimeout: 5},
		"TLS.MinVersion": {Addrs: three, TLS: &connector.TLSConfig{MinVersion: "1.1"}},
	} {
		_, err := connector.NewRedlock(&cfg)
		refusedConfig(t, field, err)
	}
	if _, err := connector.NewRedlock(nil); !errors.Is(err, connector.ErrConfigNil) {
		t.Errorf("nil: %v", err)
	}
	_, err := connector.NewRedlock(&connector.RedlockConfig{Addrs: three}, connector.WithRedisLockOptions(redislock.WithPlainClients(0)))
	refusedConfig(t, "WithRedisLockOptions", err)
	_, err = connector.NewRedis(&connector.RedisConfig{Addr: "a:1"}, connector.WithRedlockOptions(redlock.WithDrift(0)))
	refusedConfig(t, "WithRedlockOptions", err)
	shown := connector.RedlockConfig{Addrs: three, Password: password}
	if text := fmt.Sprintf("%v %+v %#v", shown, shown, shown); strings.Contains(text, password) {
		t.Error(text)
	}
}

func TestRedlockConnector(t *testing.T) {
	var nodes []*servers.Redis
	var addrs []string
	for range 3 {
		server := redisWithUsers(t)
		nodes, addrs = append(nodes, server), append(addrs, server.Addr())
	}
	c := newRedlock(t, connector.RedlockConfig{Addrs: addrs, Password: password, ConnectTimeout: long},
		connector.WithRedlockOptions(redlock.WithDrift(0.02), redlock.WithNodeTimeout(5*time.Second))) // a machine may stand still
	mustConnect(t, c)
	locks := func() (*dlock.Client, error) { return dlock.NewRedlock(c, &dlock.Config{Prefix: "p:"}) }
	lockOnce(t, locks)
	if len(c.Clients()) != 3 || strings.Contains(c.String(), password) {
		t.Errorf("%v", c)
	}
	wrong := newRedlock(t, connector.RedlockConfig{Addrs: addrs, Password: "wrong", ConnectTimeout: long})
	if err := wrong.Connect(t.Context()); !errors.Is(err, connector.ErrDenied) || strings.Contains(err.Error(), "wrong") {
		t.Errorf("a wrong password: %v", err)
	}
	if err := nodes[0].Kill(); err != nil {
		t.Fatal(err)
	}
	if err := c.HealthCheck(t.Context()); err != nil {
		t.Errorf("one of three is down: %v", err)
	}
	lockOnce(t, locks)
	if err := nodes[1].Kill(); err != nil {
		t.Fatal(err)
	}
	if err := c.HealthCheck(t.Context()); !errors.Is(err, connector.ErrUnreachable) {
		t.Errorf("two of three are down: %v", err)
	}
	closeOnce(t, c)
	if err := c.Connect(context.Background()); !errors.Is(err, connector.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
	if _, err := dlock.NewRedlock(nil, &dlock.Config{}); !errors.Is(err, dlock.ErrConnectorNil) {
		t.Errorf("nil connector: %v", err)
	}
}
