package etcdlock_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// A lateNetwork keeps a submission back, whose caller gets an error, and delivers it after the next call.
type lateNetwork struct {
	mu    sync.Mutex
	armed bool
	late  *pb.TxnRequest
}

func (n *lateNetwork) intercept(ctx context.Context, path string, req, reply any, cc *grpc.ClientConn, call grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	txn, isTxn := req.(*pb.TxnRequest)
	if n.armed && isTxn && len(txn.Success) > 0 && strings.HasPrefix(string(txn.Success[0].GetRequestPut().GetKey()), "k/") {
		n.armed, n.late = false, txn
		return status.Error(codes.Internal, "no answer")
	}
	err := call(ctx, path, req, reply, cc, opts...)
	if n.late != nil && strings.HasPrefix(path, "/etcdserverpb.KV/") {
		late := n.late
		n.late = nil
		if err := call(ctx, txnPath, late, &pb.TxnResponse{}, cc); err != nil {
			return err
		}
	}
	return err
}

// A submission that arrives during its release, between any two calls of it, stores nothing, whatever its mode
// and whoever releases it.
func TestLateSubmissionLeavesNothing(t *testing.T) {
	t.Parallel()
	server := testenv.Etcd(t)
	direct := dial(t, server.Endpoint())
	for _, r := range []driver.Request{{Mode: driver.Exclusive}, {Mode: driver.Shared}, {Mode: driver.Permit, Limit: 2}} {
		for _, byOther := range []bool{false, true} {
			t.Run(fmt.Sprint(r.Mode, " by other ", byOther), func(t *testing.T) {
				network := &lateNetwork{}
				client, err := clientv3.New(clientv3.Config{
					Endpoints: []string{server.Endpoint()}, Logger: zap.NewNop(), DialOptions: []grpc.DialOption{grpc.WithChainUnaryInterceptor(network.intercept)},
				})
				check(t, err)
				t.Cleanup(func() { _ = client.Close() })
				d := openDriver(t, client)
				releaser := d
				if byOther {
					releaser = openDriver(t, client)
				}
				r.Ref, r.Wait = driver.Ref{Key: "k", ID: fmt.Sprintf("%032x", time.Now().UnixNano()), TTL: time.Minute}, true
				submit(t, d, refOf(t.Name(), 1)) // makes the lease
				network.armed = true
				if st, err := d.Acquire(t.Context(), r); err == nil || driver.ClassOf(err) != driver.Ambiguous {
					t.Fatalf("Acquire = %v, %v", st, err)
				}
				ref := r.Ref
				ref.Unanswered = true
				answered(t, func() error { _, err := releaser.Release(t.Context(), ref); return err })
				if network.late != nil {
					t.Error("the submission did not arrive")
				}
				if left := storedClaims(t, direct, "k"); len(left) > 0 {
					t.Errorf("%q is left", left[0].Key)
				}
				_, err = direct.Delete(t.Context(), "k/", clientv3.WithPrefix())
				check(t, err)
			})
		}
	}
}
