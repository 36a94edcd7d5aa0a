package etcdlock_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock"
)

// A shorter Extend that has no answer is followed by a longer one that has: the lock is not lost, and valid for the shorter
// lease, on which it may still be.
func TestLongerExtendAfterAShorterOneWithoutAnAnswer(t *testing.T) {
	t.Parallel()
	server := testenv.Etcd(t)
	var lost atomic.Bool
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	client, err := clientv3.New(clientv3.Config{
		Endpoints: []string{server.Endpoint()}, Logger: zap.NewNop(), DialTimeout: patience,
		DialOptions: []grpc.DialOption{grpc.WithChainUnaryInterceptor(func(ctx context.Context, path string, req, reply any, cc *grpc.ClientConn, call grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			txn, ok := req.(*etcdserverpb.TxnRequest)
			if ok && lost.Load() && len(txn.Success) > 0 && txn.Success[0].GetRequestPut().GetIgnoreValue() {
				cancel()
				return status.Error(codes.Unavailable, "the request is lost")
			}
			return call(ctx, path, req, reply, cc, opts...)
		})},
	})
	check(t, err)
	t.Cleanup(func() { _ = client.Close() })
	c := locksOn(t, client, dlock.Config{})
	g := acquire(t, c, "k", dlock.WithTTL(time.Hour))
	lost.Store(true)
	if err := g.Extend(ctx, time.Minute); !errors.Is(err, dlock.ErrUnknownOutcome) {
		t.Fatal(err)
	}
	lost.Store(false)
	check(t, g.Extend(t.Context(), time.Hour))
	check(t, g.Err())
	if left := g.Remaining(); left < 30*time.Second || left > time.Minute {
		t.Errorf("%v left, want a minute less its margin", left)
	}
	unlock(t, g)
}
