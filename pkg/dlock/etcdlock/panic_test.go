package etcdlock_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"

	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock"
)

// An interceptor of the client panics in goroutines of a renewal and of a watch, where no caller could recover. The call is repeated.
func TestPanicOfTheClient(t *testing.T) {
	t.Parallel()
	endpoint := testenv.Etcd(t).Endpoint()
	var at atomic.Value // the call that panics next
	at.Store("")
	client, err := clientv3.New(clientv3.Config{
		Endpoints: []string{endpoint}, Logger: zap.NewNop(),
		DialOptions: []grpc.DialOption{grpc.WithChainStreamInterceptor(
			func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, next grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
				if name := method[strings.LastIndex(method, "/")+1:]; at.CompareAndSwap(name, "") {
					panic(name)
				}
				return next(ctx, desc, cc, method, opts...)
			}), grpc.WithChainUnaryInterceptor(
			func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, next grpc.UnaryInvoker, opts ...grpc.CallOption) error {
				if name := method[strings.LastIndex(method, "/")+1:]; at.CompareAndSwap(name, "") {
					panic(name)
				}
				return next(ctx, method, req, reply, cc, opts...)
			})},
	})
	check(t, err)
	t.Cleanup(func() { _ = client.Close() })
	c := locksOn(t, client, dlock.Config{DefaultTTL: time.Minute})
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	at.Store("LeaseKeepAlive")
	g := acquire(t, c, "k")
	check(t, g.Extend(ctx, 90*time.Second))
	testenv.Eventually(t, patience, "a stream is opened", func() bool { return at.Load() == "" })
	at.Store("LeaseRevoke")
	own := acquire(t, c, "own", dlock.WithoutRenewal())
	unlock(t, own)
	testenv.Eventually(t, patience, "its lease is revoked", func() bool { return at.Load() == "" })
	for i, call := range []string{"Txn", "LeaseGrant"} {
		at.Store(call)
		if err := g.Extend(ctx, time.Duration(i+2)*time.Minute); err != nil || at.Load() != "" {
			t.Errorf("extending it: %v; not called: %v", err, at.Load())
		}
	}
	unlock(t, g)
	holder := acquire(t, locksAt(t, endpoint), "waited for")
	waits := startWait(t, c, dial(t, endpoint), "waited for")
	at.Store("Range")
	unlock(t, holder)
	next := granted(t, waits)
	if at.Load() != "" {
		t.Error("the place of the waiter was not read")
	}
	unlock(t, next.guard)
}
