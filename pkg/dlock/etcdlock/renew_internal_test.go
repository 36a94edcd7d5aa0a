package etcdlock

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"

	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// The renewal of a claim whose lease was revoked says that the claim is gone, and not that it is unknown.
func TestRenewalOfARevokedLease(t *testing.T) {
	t.Parallel()
	d, client := openInternal(t, testenv.Etcd(t).Endpoint())
	for i := range 50 {
		ref := refTo("k", i, time.Minute)
		acquireHeld(t, d, driver.Request{Ref: ref, Fixed: true})
		d.mu.Lock()
		lease := d.claims[ref.ID].lease.id
		d.mu.Unlock()
		_, err := client.Revoke(t.Context(), lease)
		if err != nil {
			t.Fatal(err)
		}
		if states := renewed(t, d, ref); states[0].Phase != driver.Gone {
			t.Fatalf("round %d: %v", i, states)
		}
	}
}

// A renewal that is answered for one claim and not for another says why.
func TestPartlyAnsweredRenewalHasItsCause(t *testing.T) {
	t.Parallel()
	cut := errors.New("the read was cut")
	var cutting atomic.Bool
	d, client := openInternal(t, testenv.Etcd(t).Endpoint(), grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoker grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		if _, reads := req.(*pb.TxnRequest); reads && cutting.Load() {
			return cut
		}
		return invoker(ctx, method, req, reply, cc, opts...)
	}))
	ref := refTo("k", 1, time.Minute)
	acquireHeld(t, d, driver.Request{Ref: ref})
	cutting.Store(true)
	states, err := d.Renew(t.Context(), []driver.Ref{ref, refTo("other", 2, time.Minute)})
	if !errors.Is(err, cut) || states[0].Phase != driver.Unknown || states[1].Phase != driver.Gone {
		t.Errorf("%v, %v", states, err)
	}

	// Another claim, whose lease is gone, has another cause.
	cutting.Store(false)
	other := refTo("third", 3, 2*time.Minute)
	acquireHeld(t, d, driver.Request{Ref: other})
	d.mu.Lock()
	lease := d.claims[other.ID].lease.id
	d.mu.Unlock()
	if _, err := client.Revoke(t.Context(), lease); err != nil {
		t.Fatal(err)
	}
	cutting.Store(true)
	_, err = d.Renew(t.Context(), []driver.Ref{other, ref})
	cutting.Store(false)
	if err == nil || errors.Is(err, errLeaseGone) || errors.Is(err, cut) || !strings.Contains(err.Error(), cut.Error()) || !strings.Contains(err.Error(), errLeaseGone.Error()) {
		t.Errorf("for two reasons: %v", err)
	}
}
