package etcdlock_test

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/status"

	"github.com/ceyewan/genesis/internal/faultproxy"
	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock"
)

// A detour is between the etcd client, which may repeat a call, and gRPC. It affects the
// transactions that store a claim of the lock "detour".
type detour struct {
	client *clientv3.Client
	locks  *dlock.Client
	proxy  *faultproxy.Proxy
	n      atomic.Int64 // transactions that took it
	sent   atomic.Bool  // one of them was sent, or will be
	late   sync.WaitGroup
}

// through makes one call as gRPC does, and n counts from 1.
type through func(d *detour, ctx context.Context, n int64, call func(context.Context) error) error

func newDetour(t *testing.T, way through) *detour {
	t.Helper()
	d := &detour{proxy: testenv.Proxy(t, testenv.Etcd(t).Addr())}
	between := func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, call grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		direct := func(ctx context.Context) error {
			opts := slices.Clone(opts)
			if ctx.Done() == nil { // it is made when the caller has left, and may read the peer
				opts = slices.DeleteFunc(opts, func(o grpc.CallOption) bool { _, ok := o.(grpc.PeerCallOption); return ok })
			}
			return call(ctx, method, req, reply, cc, opts...)
		}
		txn, ok := req.(*pb.TxnRequest)
		if !ok || len(txn.Success) == 0 || !bytes.Contains(txn.Success[0].GetRequestPut().GetValue(), []byte(`"key":"detour"`)) {
			return direct(ctx)
		}
		return way(d, ctx, d.n.Add(1), direct)
	}
	client, err := clientv3.New(clientv3.Config{
		Endpoints: []string{urlOf(d.proxy)}, Logger: zap.NewNop(), DialOptions: []grpc.DialOption{grpc.WithChainUnaryInterceptor(between)},
	})
	check(t, err)
	d.client = client
	t.Cleanup(func() { d.late.Wait(); _ = client.Close() })
	d.locks = locksOn(t, client, dlock.Config{DefaultTTL: time.Minute})
	warm(t, d.locks)
	return d
}

// shut ends the proxy, and waits until the client has no connection.
func (d *detour) shut() error {
	err := d.proxy.Shut()
	conn := d.client.ActiveConnection()
	for conn.GetState() == connectivity.Ready {
		if !conn.WaitForStateChange(context.Background(), connectivity.Ready) {
			break
		}
	}
	return err
}

// An attempt whose time ends before gRPC has a connection for it was not sent. It has no cause of
// its own, so the cause of the attempt before it is reported.
func TestStarvedAttemptWasNotSent(t *testing.T) {
	t.Parallel()
	var refused atomic.Bool
	d := newDetour(t, func(_ *detour, ctx context.Context, _ int64, call func(context.Context) error) error {
		if refused.Load() {
			<-ctx.Done()
		}
		err := call(ctx)
		if err != nil && strings.Contains(err.Error(), "connection refused") {
			refused.Store(true)
		}
		return err
	})
	check(t, d.shut())
	refused.Store(true) // so that no attempt learns of a cause
	_, err := d.locks.Acquire(context.Background(), "detour", dlock.WithWait(50*time.Millisecond))
	wantUnavailable(t, err)
	const trials = 20
	for range trials {
		refused.Store(false)
		before := d.n.Load()
		_, err = d.locks.Acquire(context.Background(), "detour", dlock.WithWait(300*time.Millisecond))
		if refused.Load() && d.n.Load() > before+1 {
			wantRefused(t, err)
			check(t, d.locks.Close()) // with something to clean up it is an error
			return
		}
	}
	t.Fatalf("in none of %d trials an attempt was refused and another one had no time", trials)
}

// If gRPC has no connection in the end, an earlier attempt may still have been sent.
func TestSentAttemptIsNotForgotten(t *testing.T) {
	t.Parallel()
	for name, way := range map[string]through{
		"reset, and the client repeats it in vain": func(d *detour, ctx context.Context, n int64, call func(context.Context) error) error {
			err := call(ctx)
			if n > 1 || err != nil {
				return err
			}
			d.sent.Store(true)
			return errors.Join(d.shut(), status.Error(codes.Canceled, "stream terminated by RST_STREAM with error code: CANCEL"))
		},
		"no answer in time": func(d *detour, ctx context.Context, _ int64, call func(context.Context) error) error {
			err := call(ctx)
			if err != nil {
				return err
			}
			d.sent.Store(true)
			<-ctx.Done()
			return status.FromContextError(ctx.Err()).Err()
		},
		"sent after the caller has left": func(d *detour, ctx context.Context, _ int64, call func(context.Context) error) error {
			<-ctx.Done()
			d.sent.Store(true)
			d.late.Go(func() { _ = call(context.WithoutCancel(ctx)) })
			return status.FromContextError(ctx.Err()).Err()
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const trials = 20
			for range trials {
				d := newDetour(t, way)
				_, err := d.locks.Acquire(context.Background(), "detour", dlock.WithWait(500*time.Millisecond))
				if !d.sent.Load() { // there was no time
					continue
				}
				if !errors.Is(err, dlock.ErrUnknownOutcome) || errors.Is(err, dlock.ErrUnavailable) {
					t.Errorf("a claim may be stored, and the error is %v", err)
				}
				return
			}
			t.Fatalf("nothing was sent in %d trials", trials)
		})
	}
}
