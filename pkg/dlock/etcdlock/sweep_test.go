package etcdlock_test

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/ceyewan/genesis/internal/faultproxy"
	"github.com/ceyewan/genesis/internal/hazardtest"
	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/etcdlock"
)

// swept returns a driver behind a proxy, and the client that it uses.
func swept(t *testing.T) (*clientv3.Client, *faultproxy.Proxy, driver.Driver) {
	t.Helper()
	proxy := testenv.Proxy(t, testenv.Etcd(t).Addr())
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{proxy.Addr()}, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	d, err := etcdlock.New(client).Open(driver.Options{Prefix: "p:", Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Close() })
	return client, proxy, d
}

// acquireNow submits a claim that must be granted at once.
func acquireNow(t *testing.T, d driver.Driver, r driver.Ref) (st driver.State) {
	t.Helper()
	answered(t, func() (err error) { st, err = d.Acquire(t.Context(), driver.Request{Ref: r}); return err })
	if st.Phase != driver.Held {
		t.Fatal(st)
	}
	return st
}

// A claim that is submitted repeatedly counts as renewed, although no attempt was answered: the
// sweep must not delete what the last attempt was granted.
func TestSweepSparesAClaimThatIsBeingSubmitted(t *testing.T) {
	t.Parallel()
	hazardtest.UntilValid(t, sparesSubmitted)
}

// sparesSubmitted is a round of TestSweepSparesAClaimThatIsBeingSubmitted. It is void if the machine stalled for so long that the
// claim may have been silent.
func sparesSubmitted(t *testing.T) (valid bool) {
	t.Helper()
	client, proxy, d := swept(t)
	const ttl = 4 * time.Second
	other := driver.Ref{Key: "other", ID: strings.Repeat("a", 32), TTL: ttl}
	mine := driver.Ref{Key: "mine", ID: strings.Repeat("b", 32), TTL: ttl}
	acquireNow(t, d, other)
	land := proxy.HoldGRPC("/etcdserverpb.Lease/LeaseGrant", 1) // the sweep's tombstone
	var silent, last time.Time
	testenv.Eventually(t, patience, "a renewal looks for silent claims", func() bool {
		last = time.Now()
		release := proxy.HoldGRPC("/etcdserverpb.KV/Txn", 1)
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		if _, err := d.Acquire(ctx, driver.Request{Ref: mine}); err == nil {
			t.Fatal("the attempt was answered")
		}
		cancel()
		release()
		if silent.IsZero() {
			// When a claim is removed that was submitted once.
			silent = time.Now().Add(ttl + ttl/4 + 100*time.Millisecond)
		}
		renewed := time.Now()
		_, err := d.Renew(t.Context(), []driver.Ref{other}) // which starts the sweep, unless it fails
		return err == nil && renewed.After(silent)
	})
	var st driver.State
	answered(t, func() (err error) { st, err = d.Acquire(t.Context(), driver.Request{Ref: mine}); return err })
	land()
	switch {
	case st.Phase == driver.Gone && testenv.Stalled(t, last, ttl*3/4):
		return false
	case st.Phase != driver.Held:
		t.Fatal(st)
	}
	deleted := client.Watch(t.Context(), "p:mine/", clientv3.WithPrefix(), clientv3.WithFilterPut(), clientv3.WithRev(st.Token))
	select {
	case <-deleted:
		if early := time.Until(st.Until); early > 0 {
			t.Fatalf("the claim was deleted %v before its end", early)
		}
	case <-time.After(time.Until(st.Until) - ttl/2): // the sweep deletes as soon as it has its tombstone
	}
	return true
}

// A claim that was not renewed for too long is gone as soon as its removal was attempted: the
// removal may arrive at any time.
func TestSweptClaimIsGone(t *testing.T) {
	t.Parallel()
	client, proxy, d := swept(t)
	const ttl = 4 * time.Second
	other := driver.Ref{Key: "other", ID: strings.Repeat("a", 32), TTL: ttl}
	mine := driver.Ref{Key: "mine", ID: strings.Repeat("b", 32), TTL: ttl}
	for _, r := range []driver.Ref{other, mine} {
		acquireNow(t, d, r)
	}
	// The sweep's tombstone needs a lease, which it does not get: nothing is removed yet.
	granted, before := proxy.HoldGRPC("/etcdserverpb.Lease/LeaseGrant", 1), proxy.GRPCCalls()["/etcdserverpb.Lease/LeaseGrant"]
	silent := time.Now().Add(ttl + ttl/3 + 100*time.Millisecond)
	testenv.Eventually(t, patience, "the sweep begins", func() bool {
		_, _ = d.Renew(t.Context(), []driver.Ref{other})
		return time.Now().After(silent) && proxy.GRPCCalls()["/etcdserverpb.Lease/LeaseGrant"] > before
	})
	for _, ask := range []func() (driver.State, error){
		func() (driver.State, error) {
			states, err := d.Renew(t.Context(), []driver.Ref{mine})
			return states[0], err
		},
		func() (driver.State, error) { return d.Acquire(t.Context(), driver.Request{Ref: mine}) },
	} {
		var st driver.State
		answered(t, func() (err error) { st, err = ask(); return err })
		if st.Phase != driver.Gone {
			t.Errorf("%v, though it is being removed", st)
		}
	}
	granted()
	testenv.Eventually(t, patience, "the claim is removed", func() bool {
		_, _ = d.Renew(t.Context(), []driver.Ref{other})
		got, err := client.Get(t.Context(), "p:mine/", clientv3.WithPrefix(), clientv3.WithCountOnly())
		return err == nil && got.Count == 0
	})
}
