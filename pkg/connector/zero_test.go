package connector_test

import (
	"context"
	"errors"
	"testing"

	"github.com/ceyewan/genesis/pkg/connector"
	"github.com/ceyewan/genesis/pkg/dlock"
)

// A connector that no constructor made, and a context that is nil, are errors, and no panics.
func TestZeroConnectors(t *testing.T) {
	for name, c := range map[string]conn{"redis": new(connector.Redis), "etcd": new(connector.Etcd), "redlock": new(connector.Redlock)} {
		for op, err := range map[string]error{"Connect": c.Connect(context.Background()), "HealthCheck": c.HealthCheck(context.Background()), "Close": c.Close()} {
			if !errors.Is(err, connector.ErrConfigNil) {
				t.Errorf("%s: %s: %v", name, op, err)
			}
		}
		if s, ok := c.(interface{ String() string }); !ok || s.String() == "" {
			t.Errorf("%s: no text", name)
		}
	}
	_, redis := dlock.NewRedis(new(connector.Redis), &dlock.Config{})
	_, etcd := dlock.NewEtcd(new(connector.Etcd), &dlock.Config{})
	_, redlock := dlock.NewRedlock(new(connector.Redlock), &dlock.Config{})
	for name, err := range map[string]error{"redis": redis, "etcd": etcd} {
		if !errors.Is(err, dlock.ErrConnectorNil) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if !errors.Is(redlock, dlock.ErrInvalidConfig) {
		t.Errorf("redlock: %v", redlock)
	}
	if clients := new(connector.Redlock).Clients(); len(clients) > 0 {
		t.Errorf("%d clients", len(clients))
	}
	if new(connector.Redis).Client() != nil || new(connector.Etcd).Client() != nil {
		t.Error("a client of nothing")
	}
}

func TestNilContext(t *testing.T) {
	redis := newRedis(t, connector.RedisConfig{Addr: "127.0.0.1:1"})
	defer closeOnce(t, redis)
	etcd := newEtcd(t, connector.EtcdConfig{Endpoints: []string{"127.0.0.1:1"}})
	defer closeOnce(t, etcd)
	redlock, err := connector.NewRedlock(&connector.RedlockConfig{Addrs: []string{"127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3"}})
	if err != nil {
		t.Fatal(err)
	}
	defer closeOnce(t, redlock)
	for name, c := range map[string]conn{"redis": redis, "etcd": etcd, "redlock": redlock} {
		for op, err := range map[string]error{"Connect": c.Connect(nil), "HealthCheck": c.HealthCheck(nil)} { //nolint:staticcheck // the point of the test
			if !errors.Is(err, connector.ErrInvalidConfig) {
				t.Errorf("%s: %s: %v", name, op, err)
			}
		}
	}
}
