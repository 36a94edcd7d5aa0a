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

// An operator revokes the lease of the bars. What has to be barred afterwards must still
// be cleaned up: its own lease, which other claims keep alive, would keep it for as long
// as the process lives.
func TestCleanUpOutlivesTheLeaseOfItsBars(t *testing.T) {
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
		r.Unsettled = true
		return r
	}
	if _, err := d.Release(t.Context(), leaveUnanswered("a")); err != nil {
		t.Fatal(err)
	}
	bars, err := client.Get(t.Context(), "p:%bar/", clientv3.WithPrefix())
	if err != nil || len(bars.Kvs) != 1 {
		t.Fatalf("%d bars, %v", len(bars.Kvs), err)
	}
	if _, err := client.Revoke(t.Context(), clientv3.LeaseID(bars.Kvs[0].Lease)); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Release(t.Context(), leaveUnanswered("b")); err != nil {
		t.Fatalf("clean-up fails after the lease of its bars was revoked: %v", err)
	}
	left, err := client.Get(t.Context(), "p:k/", clientv3.WithPrefix())
	if err != nil || left.Count != 0 {
		t.Errorf("%d claims are left, %v", left.Count, err)
	}
	if bars, err := client.Get(t.Context(), "p:%bar/", clientv3.WithPrefix()); err != nil || len(bars.Kvs) != 1 {
		t.Errorf("%d bars after the second clean-up, %v", len(bars.Kvs), err)
	}
}
