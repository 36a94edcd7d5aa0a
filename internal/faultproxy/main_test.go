package faultproxy_test

import (
	"context"
	"errors"
	"net"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/goleak"
	"go.uber.org/zap"

	"github.com/ceyewan/genesis/internal/servers"
)

func TestMain(m *testing.M) {
	redis.SetLogger(quiet{}) // servers that cannot be reached are the point
	// A pool whose dials fail keeps dialing, and notices its Close a second late.
	dialer := "github.com/redis/go-redis/v9/internal/pool.(*ConnPool).tryDial"
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction(dialer))
}

type quiet struct{}

func (quiet) Printf(context.Context, string, ...any) {}

const (
	patience = time.Minute            // for what must happen, on a busy machine
	sent     = 6 * time.Second        // for a request that must have left before it is given up
	soon     = 100 * time.Millisecond // for what is not going to happen
)

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// clientOf returns a client that ends with the test.
func clientOf(t *testing.T, r *servers.Redis) *redis.Client {
	client := r.Client()
	t.Cleanup(func() { client.Close() })
	return client
}

// within returns a context that ends soon, for events that must not happen.
func within(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

func get(t *testing.T, client redis.Cmdable, key string) string {
	t.Helper()
	value, err := client.Get(t.Context(), key).Result()
	if err != nil && !errors.Is(err, redis.Nil) {
		t.Fatal(err)
	}
	return value
}

// etcdClient returns a client that ends with the test.
func etcdClient(t *testing.T, endpoints ...string) *clientv3.Client {
	t.Helper()
	client, err := clientv3.New(clientv3.Config{Endpoints: endpoints, Logger: zap.NewNop()})
	check(t, err)
	t.Cleanup(func() { client.Close() })
	return client
}

func etcdPut(t *testing.T, client *clientv3.Client, key, value string) {
	t.Helper()
	_, err := client.Put(within(t, patience), key, value)
	check(t, err)
}

func etcdGet(t *testing.T, client *clientv3.Client, key string) string {
	t.Helper()
	got, err := client.Get(within(t, patience), key)
	check(t, err)
	if len(got.Kvs) == 0 {
		return ""
	}
	return string(got.Kvs[0].Value)
}

// timedOut reports whether a call ended because of its timeout: clients report that in several
// ways.
func timedOut(err error) bool {
	var timeout net.Error
	return errors.Is(err, context.DeadlineExceeded) || errors.As(err, &timeout) && timeout.Timeout()
}
