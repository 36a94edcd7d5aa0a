package etcdlock

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// sizes returns the sizes of a driver's tables.
func (d *etcdDriver) sizes() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return fmt.Sprintf("claims %d, owns %d, numbers %d, leases to revoke %d, queued %d",
		len(d.claims), len(d.owns), len(d.numbers), len(d.leasesToRevoke), len(d.revokeQueue))
}

const nothingLeft = "claims 0, owns 0, numbers 0, leases to revoke 0, queued 0"

// Claims that are not renewed expire, and are released late or never: the driver forgets them and
// their leases. A claim on another lease stays alive meanwhile.
func TestClaimsThatRunOutAreForgotten(t *testing.T) {
	t.Parallel()
	d, _ := openInternal(t, testenv.Etcd(t).Endpoint())
	const ttl = time.Second
	for _, unlock := range []bool{false, true} {
		var refs []driver.Ref
		for i := range testenv.UnderStress(100, 500) {
			refs = append(refs, refTo(fmt.Sprintf("k%d", i), i, ttl))
			acquireHeld(t, d, driver.Request{Ref: refs[i], Fixed: true})
		}
		if unlock {
			<-time.After(2 * ttl)
			for _, r := range refs {
				if _, err := d.Release(t.Context(), r); err != nil {
					t.Fatal(err)
				}
			}
		}
		testenv.Eventually(t, patience, "all is forgotten", func() bool { return d.sizes() == nothingLeft })
	}
}

// State that no watch reports and no call releases is forgotten when no late call can arrive any
// more: claims, leases that could not be revoked, and numbers of keys that were not to be reused.
func TestNothingIsRememberedForever(t *testing.T) {
	t.Parallel()
	proxy := testenv.Proxy(t, testenv.Etcd(t).Addr())
	d, _ := openInternal(t, "http://"+proxy.Addr())
	const ttl = time.Minute
	fixed, held, gone := refTo("fixed", 1, ttl), refTo("held", 2, ttl), refTo("gone", 3, ttl)
	acquireHeld(t, d, driver.Request{Ref: fixed, Fixed: true})
	acquireHeld(t, d, driver.Request{Ref: held})
	acquireHeld(t, d, driver.Request{Ref: gone, Fixed: true})
	proxy.HoldGRPC("/etcdserverpb.Lease/LeaseRevoke", 1)
	if _, err := d.Release(t.Context(), gone); err != nil {
		t.Fatal(err)
	}
	proxy.DropGRPC("/etcdserverpb.KV/DeleteRange", 1) // a delete without an answer
	if _, err := d.Release(t.Context(), held); err == nil {
		t.Fatal("the release was answered")
	}
	testenv.Eventually(t, patience, "the release is repeated", func() bool {
		_, err := d.Release(t.Context(), held)
		return err == nil
	})
	proxy.Refuse(true)
	proxy.Cut()
	if got := d.sizes(); got == nothingLeft {
		t.Fatal("the faults did not happen")
	}
	d.prune(time.Now().Add(3 * driver.TombstoneTTL(ttl)))
	if got := d.sizes(); got != nothingLeft {
		t.Error(got)
	}
	proxy.Heal()
}

// Many leases are revoked at once, by releases and by Close: a few at a time.
func TestRevocationsAreLimited(t *testing.T) {
	t.Parallel()
	var now, most, all atomic.Int64
	count := func(ctx context.Context, path string, req, reply any, cc *grpc.ClientConn, call grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		if path != "/etcdserverpb.Lease/LeaseRevoke" {
			return call(ctx, path, req, reply, cc, opts...)
		}
		n := now.Add(1)
		defer now.Add(-1)
		all.Add(1)
		for was := most.Load(); n > was && !most.CompareAndSwap(was, n); was = most.Load() {
		}
		return call(ctx, path, req, reply, cc, opts...)
	}
	proxy := testenv.Proxy(t, testenv.Etcd(t).Addr())
	d, _ := openInternal(t, "http://"+proxy.Addr(), grpc.WithChainUnaryInterceptor(count))
	const n = 100
	var refs []driver.Ref
	for i := range n {
		refs = append(refs, refTo(fmt.Sprintf("k%d", i), i, time.Minute))
		acquireHeld(t, d, driver.Request{Ref: refs[i], Fixed: true})
	}
	proxy.DelayGRPC("/etcdserverpb.Lease/LeaseRevoke", 20*time.Millisecond)
	var wg sync.WaitGroup
	for _, r := range refs {
		wg.Go(func() {
			if _, err := d.Release(t.Context(), r); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	testenv.Eventually(t, patience, "some are revoked", func() bool { return all.Load() >= maxRevokes })
	began := time.Now()
	if err := d.Close(); err != nil {
		t.Error(err)
	}
	t.Logf("%d revocations, %d at a time, Close took %v", all.Load(), most.Load(), time.Since(began))
	if most.Load() > maxRevokes {
		t.Errorf("%d revocations at a time", most.Load())
	}
}
