package etcdlock_test

import (
	"context"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// An operator revokes the lease of the tombstones. A claim that needs a tombstone afterwards must
// still be cleaned up: other claims keep its own lease alive, which would keep the claim for as
// long as the process lives.
func TestCleanupOutlivesTheLeaseOfItsTombstones(t *testing.T) {
	t.Parallel()
	client, proxy, d := swept(t)
	leaveUnanswered := func(id string) driver.Ref {
		t.Helper()
		r := driver.Ref{Key: "k", ID: strings.Repeat(id, 32), TTL: time.Minute}
		before := proxy.GRPCCalls()[txnPath]
		land := proxy.HoldGRPC(txnPath, 1)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		failed := make(chan error, 1)
		go func() { _, err := d.Acquire(ctx, driver.Request{Ref: r}); failed <- err }()
		testenv.Eventually(t, patience, "the attempt is on its way", func() bool { return proxy.GRPCCalls()[txnPath] > before })
		cancel()
		if err := <-failed; err == nil {
			t.Fatal("the attempt was answered")
		}
		land()
		r.Unanswered = true
		return r
	}
	release := func(r driver.Ref) {
		t.Helper()
		answered(t, func() error { _, err := d.Release(t.Context(), r); return err })
	}
	release(leaveUnanswered("a"))
	tombstones, err := client.Get(t.Context(), "p:%tombstone/", clientv3.WithPrefix())
	if err != nil || len(tombstones.Kvs) != 1 {
		t.Fatalf("%d tombstones, %v", len(tombstones.Kvs), err)
	}
	if _, err := client.Revoke(t.Context(), clientv3.LeaseID(tombstones.Kvs[0].Lease)); err != nil {
		t.Fatal(err)
	}
	release(leaveUnanswered("b")) // the lease of its tombstone was revoked
	left, err := client.Get(t.Context(), "p:k/", clientv3.WithPrefix())
	if err != nil || left.Count != 0 {
		t.Errorf("%d claims are left, %v", left.Count, err)
	}
	if tombstones, err := client.Get(t.Context(), "p:%tombstone/", clientv3.WithPrefix()); err != nil || len(tombstones.Kvs) != 1 {
		t.Errorf("%d tombstones after the second cleanup, %v", len(tombstones.Kvs), err)
	}
}
