package etcdlock

import (
	"context"
	"errors"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// A claim is released while a renewal moves it to the lease of another TTL. Whatever the renewal
// learns then, the claim stays forgotten, and no lease outlives the driver.
func TestReleasedWhileItMoves(t *testing.T) {
	t.Parallel()
	lost := errors.New("the answer was lost")
	for name, move := range map[string]func(release func(), send func() error) error{
		"before the move is sent": func(release func(), send func() error) error {
			release()
			return send()
		},
		"before its answer comes": func(release func(), send func() error) error {
			err := send()
			release()
			return err
		},
		"after its answer was lost": func(_ func(), send func() error) error {
			_ = send()
			return lost
		},
		"and its answer never comes": func(release func(), send func() error) error {
			_ = send()
			release()
			return lost
		},
	} {
		for _, fixed := range []bool{false, true} {
			t.Run(map[bool]string{true: "fixed "}[fixed]+name, func(t *testing.T) {
				t.Parallel()
				for void := 0; !releaseWhileItMoves(t, fixed, move); void++ {
					if void == 5 {
						t.Fatal("each time the machine or the server was too slow")
					}
				}
			})
		}
	}
}

// releaseWhileItMoves is a round of TestReleasedWhileItMoves. It reports false if leases are left on account of the machine.
func releaseWhileItMoves(t *testing.T, fixed bool, move func(release func(), send func() error) error) bool {
	t.Helper()
	var release func()
	released := false
	intercept := func(ctx context.Context, path string, req, reply any, cc *grpc.ClientConn, call grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		send := func() error { return call(ctx, path, req, reply, cc, opts...) }
		if !movesLease(req) {
			return send()
		}
		return move(release, send)
	}
	d, client := openInternal(t, testenv.Etcd(t).Endpoint(), grpc.WithChainUnaryInterceptor(intercept))
	ref := refTo("k", 1, 20*time.Minute)
	release = func() {
		released = true
		if st, err := d.Release(t.Context(), ref); err != nil || st.Phase != driver.Held {
			t.Errorf("released: %v, %v", st.Phase, err)
		}
	}
	began := time.Now()
	acquireHeld(t, d, driver.Request{Ref: ref, Fixed: fixed})
	longer := ref
	longer.TTL *= 2
	states, err := d.Renew(t.Context(), []driver.Ref{longer})
	if err == nil && states[0].Phase == driver.Held {
		t.Errorf("the released claim is %v", states[0].Phase)
	}
	if !released {
		release()
	}
	return closeRevokes(t, d, client, began)
}

// closeRevokes closes a driver that was first used when the test began, and must leave no lease. It reports false if leases are
// left because the machine or the server was slow: Close has 300 ms to revoke them, and does not know those whose grant took
// two seconds.
func closeRevokes(t *testing.T, d *etcdDriver, client *clientv3.Client, began time.Time) bool {
	t.Helper()
	count := func() int {
		left, err := client.Leases(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return len(left.Leases)
	}
	left, closing := 0, time.Now()
	slowest := SlowestWrite(t, client, func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
		left = count()
	})
	if left == 0 {
		return true
	}
	isSlow := slowest > testenv.UnderStress(closeTimeout/2, time.Hour)
	if !isSlow && !testenv.Stalled(t, closing, closeTimeout/2) && !testenv.Stalled(t, began, time.Second) {
		t.Fatalf("%d leases are left, and no write took longer than %v", left, slowest)
	}
	t.Logf("%d leases are left, and a write took %v: once more", left, slowest)
	return false
}

// The TTL of a claim is changed three times. The first two moves are not answered, and the first
// arrives last: the next renewal finds the claim on a lease that is no longer kept alive, and
// moves it.
func TestClaimIsMovedFromALeaseThatItLeft(t *testing.T) {
	t.Parallel()
	lost := errors.New("the answer was lost")
	moves := 0
	arrive := func() {}
	intercept := func(ctx context.Context, path string, req, reply any, cc *grpc.ClientConn, call grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		if !movesLease(req) {
			return call(ctx, path, req, reply, cc, opts...)
		}
		moves++
		switch moves {
		case 1:
			late := context.WithoutCancel(ctx)
			arrive = func() {
				if err := call(late, path, req, reply, cc, opts...); err != nil {
					t.Error(err)
				}
			}
			return lost
		case 2:
			return lost
		}
		return call(ctx, path, req, reply, cc, opts...)
	}
	d, client := openInternal(t, testenv.Etcd(t).Endpoint(), grpc.WithChainUnaryInterceptor(intercept))
	ref := refTo("k", 1, 20*time.Minute)
	acquireHeld(t, d, driver.Request{Ref: ref})
	c := d.claims[ref.ID]
	renew := func(ttl time.Duration) driver.Phase {
		renewed := ref
		renewed.TTL = ttl
		states, _ := d.Renew(t.Context(), []driver.Ref{renewed})
		return states[0].Phase
	}
	if renew(2*ref.TTL) != driver.Unknown || renew(3*ref.TTL) != driver.Unknown {
		t.Fatal("the faults did not happen")
	}
	arrive()
	if p := renew(ref.TTL); p != driver.Held {
		t.Errorf("renewed: %v", p)
	}
	resp, err := client.Get(t.Context(), c.own)
	if err != nil || len(resp.Kvs) != 1 {
		t.Fatal(resp, err)
	}
	if got := resp.Kvs[0].Lease; got != int64(c.lease.id) {
		t.Error("it is on a lease that nothing keeps alive")
	}
}

// movesLease reports whether a request attaches a key to another lease.
func movesLease(req any) bool {
	txn, ok := req.(*pb.TxnRequest)
	if !ok {
		return false
	}
	for _, op := range txn.Success {
		if put := op.GetRequestPut(); put != nil && put.IgnoreValue {
			return true
		}
	}
	return false
}
