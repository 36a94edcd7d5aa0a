package etcdlock_test

import (
	"context"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock"
)

// The client of an embedded server consists of interfaces and has no connection. Locks work on it
// as on any other client: they are held, renewed, waited for, lost and released.
func TestClientWithoutConnection(t *testing.T) {
	t.Parallel()
	real := dial(t, testenv.Etcd(t).Endpoint())
	client := clientv3.NewCtxClient(context.Background())
	t.Cleanup(func() { _ = client.Close() })
	client.KV, client.Lease, client.Watcher = real.KV, real.Lease, real.Watcher
	const ttl = 10 * time.Second // much is left when it is renewed
	one, two := locksOn(t, client, dlock.Config{DefaultTTL: ttl}), locksOn(t, client, dlock.Config{DefaultTTL: ttl})
	g := acquire(t, one, "k")
	got := startWait(t, two, real, "k")
	outlive(t, g)
	unlock(t, g)
	next := granted(t, got)
	alive(t, next.guard)
	lost := watchLoss(next.guard)
	if _, err := real.Delete(t.Context(), string(storedClaims(t, real, "k")[0].Key)); err != nil {
		t.Fatal(err)
	}
	lost.when(t)
	if _, err := one.Check(t.Context()); err == nil {
		t.Error("there is no endpoint that could be checked")
	}
}
