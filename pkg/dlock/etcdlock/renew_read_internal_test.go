package etcdlock

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync/atomic"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// opsCounter counts the operations of transactions.
func opsCounter() (*atomic.Int64, grpc.DialOption) {
	ops := &atomic.Int64{}
	return ops, grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoker grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		if txn, ok := req.(*pb.TxnRequest); ok {
			ops.Add(int64(len(txn.Success)))
		}
		return invoker(ctx, method, req, reply, cc, opts...)
	})
}

// enqueued submits claims that wait.
func enqueued(t *testing.T, d *etcdDriver, from, n int) (refs []driver.Ref) {
	t.Helper()
	for i := range n {
		ref := refTo("k", from+i, time.Minute)
		ref.QueueTTL = time.Minute
		var st driver.State
		Answered(t, func() (err error) { st, err = d.Acquire(t.Context(), driver.Request{Ref: ref, Wait: true}); return err })
		if st.Phase != driver.Queued {
			t.Fatalf("claim %d: %v", i, st)
		}
		refs = append(refs, ref)
	}
	return refs
}

// renewedWith is renewed for a driver whose operations are counted. It returns how many it took.
func renewedWith(t *testing.T, d *etcdDriver, ops *atomic.Int64, refs []driver.Ref) (states []driver.State, n int64) {
	t.Helper()
	Answered(t, func() (err error) {
		before := ops.Load()
		states, err = d.Renew(t.Context(), refs)
		n = ops.Load() - before
		return err
	})
	return states, n
}

// Many claims that wait for one lock are renewed with one read, and each gets its exact place.
func TestRenewalReadsAQueueAtOnce(t *testing.T) {
	t.Parallel()
	endpoint := testenv.Etcd(t).Endpoint()
	holder, _ := openInternal(t, endpoint)
	held := refTo("k", 1000, time.Minute)
	acquireHeld(t, holder, driver.Request{Ref: held})
	ops, counting := opsCounter()
	d, client := openInternal(t, endpoint, counting)
	refs := enqueued(t, d, 0, 30)

	renew := func(want func(i int) string) int64 {
		t.Helper()
		states, n := renewedWith(t, d, ops, refs)
		for i, st := range states {
			got := st.Phase.String()
			if st.Phase == driver.Queued {
				got = fmt.Sprint("queued ", st.Ahead)
			}
			if got != want(i) {
				t.Errorf("claim %d is %s, want %s", i, got, want(i))
			}
		}
		return n
	}
	if n := renew(func(i int) string { return fmt.Sprint("queued ", i+1) }); n != 1 {
		t.Errorf("%d reads, want 1", n)
	}

	d.mu.Lock()
	own := d.claims[refs[20].ID].own
	d.mu.Unlock()
	if _, err := client.Delete(t.Context(), own); err != nil { // by an operator
		t.Fatal(err)
	}
	renew(func(i int) string {
		switch {
		case i < 20:
			return fmt.Sprint("queued ", i+1)
		case i == 20:
			return driver.Gone.String()
		}
		return fmt.Sprint("queued ", i)
	})

	if _, err := holder.Release(t.Context(), held); err != nil {
		t.Fatal(err)
	}
	renew(func(i int) string {
		switch {
		case i == 0:
			return driver.Held.String()
		case i < 20:
			return fmt.Sprint("queued ", i)
		case i == 20:
			return driver.Gone.String()
		}
		return fmt.Sprint("queued ", i-1)
	})
}

// A queue that is mostly of other processes is not read as a whole.
func TestRenewalInAForeignQueue(t *testing.T) {
	t.Parallel()
	endpoint := testenv.Etcd(t).Endpoint()
	other, _ := openInternal(t, endpoint)
	acquireHeld(t, other, driver.Request{Ref: refTo("k", 1000, time.Minute)})
	enqueued(t, other, 0, maxForeign*queueFrom+1)
	ops, counting := opsCounter()
	d, _ := openInternal(t, endpoint, counting)
	refs := enqueued(t, d, 500, queueFrom)
	states, n := renewedWith(t, d, ops, refs)
	for i, st := range states {
		if st.Phase != driver.Queued {
			t.Errorf("claim %d is %v", i, st.Phase)
		}
	}
	if n < queueFrom {
		t.Errorf("%d reads for %d claims", n, len(refs))
	}

	// Other processes have come since: the answer is not complete, and each claim is read alone.
	d.mu.Lock()
	for _, ref := range refs {
		d.claims[ref.ID].ahead = 20
	}
	d.mu.Unlock()
	enqueued(t, other, 2000, near+1)
	states, n = renewedWith(t, d, ops, refs)
	for i, st := range states {
		if st.Phase != driver.Queued {
			t.Errorf("claim %d is %v", i, st.Phase)
		}
	}
	if n <= queueFrom {
		t.Errorf("%d reads for %d claims", n, len(refs))
	}
}

func TestPlacesInAQueue(t *testing.T) {
	kv := func(key string, rev int64) *mvccpb.KeyValue {
		return &mvccpb.KeyValue{Key: []byte(key), CreateRevision: rev}
	}
	one, two, three := "p/1"+mark+"0", "p/1"+mark+"1", "p/2"+mark+"0"
	visits := func() []*visit {
		return []*visit{
			{claim: &claim{own: one}, was: position{rev: 5}},
			{claim: &claim{own: two}, was: position{rev: 9}},
			{claim: &claim{own: three}, was: position{rev: 7}},
		}
	}
	cases := []struct {
		name string
		resp *pb.RangeResponse
		want []position
	}{
		{"in order of creation", &pb.RangeResponse{Kvs: []*mvccpb.KeyValue{kv(one, 5), kv(two, 9), kv(three, 7)}}, []position{
			{phase: driver.Held, rev: 5, asOf: 20},
			{phase: driver.Queued, rev: 9, before: three, beforeRev: 7, ahead: 2, asOf: 20},
			{phase: driver.Queued, rev: 7, before: one, beforeRev: 5, ahead: 1, asOf: 20},
		}},
		{"one is gone", &pb.RangeResponse{Kvs: []*mvccpb.KeyValue{kv(two, 9), kv(three, 7)}}, []position{
			{phase: driver.Gone},
			{phase: driver.Queued, rev: 9, before: three, beforeRev: 7, ahead: 1, asOf: 20},
			{phase: driver.Held, rev: 7, asOf: 20},
		}},
		{"one was stored again", &pb.RangeResponse{Kvs: []*mvccpb.KeyValue{kv(one, 11), kv(two, 9), kv(three, 7)}}, []position{
			{phase: driver.Gone},
			{phase: driver.Queued, rev: 9, before: three, beforeRev: 7, ahead: 1, asOf: 20},
			{phase: driver.Held, rev: 7, asOf: 20},
		}},
		{"other data is no claim", &pb.RangeResponse{Kvs: []*mvccpb.KeyValue{kv("p/config", 1), kv(one, 5), kv(two, 9), kv(three, 7)}}, []position{
			{phase: driver.Held, rev: 5, asOf: 20},
			{phase: driver.Queued, rev: 9, before: three, beforeRev: 7, ahead: 2, asOf: 20},
			{phase: driver.Queued, rev: 7, before: one, beforeRev: 5, ahead: 1, asOf: 20},
		}},
		{"more", &pb.RangeResponse{More: true, Kvs: []*mvccpb.KeyValue{kv(one, 5)}}, nil},
		{"perhaps a Mutex", &pb.RangeResponse{Kvs: []*mvccpb.KeyValue{kv("p/abc", 1), kv(one, 5), kv(two, 9), kv(three, 7)}}, nil},
		{"two of one revision", &pb.RangeResponse{Kvs: []*mvccpb.KeyValue{kv("p/3"+mark+"0", 5), kv(one, 5), kv(two, 9), kv(three, 7)}}, nil},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			q := reading{visits: visits(), queue: "p/"}
			if ok := q.place(c.resp, 20); ok != (c.want != nil) {
				t.Fatalf("enough: %v", ok)
			}
			for i, want := range c.want {
				if v := q.visits[i]; v.is != want || !v.answered {
					t.Errorf("claim %d is %+v, want %+v", i, v.is, want)
				}
			}
		})
	}
}

// A client that accepts only short answers reads the claims of a long queue one by one.
func TestRenewalWithShortAnswers(t *testing.T) {
	t.Parallel()
	endpoint := testenv.Etcd(t).Endpoint()
	holder, _ := openInternal(t, endpoint)
	acquireHeld(t, holder, driver.Request{Ref: refTo("k", 1000, time.Minute)})
	short, err := clientv3.New(clientv3.Config{Endpoints: []string{endpoint}, Logger: zap.NewNop(), MaxCallSendMsgSize: 16 << 10, MaxCallRecvMsgSize: 16 << 10})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = short.Close() })
	opened, err := New(short).Open(driver.Options{Prefix: "p:", Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = opened.Close() })
	d := opened.(*etcdDriver)
	refs := enqueued(t, d, 0, 500)
	for i, st := range renewed(t, d, refs...) {
		if st.Phase != driver.Queued {
			t.Errorf("claim %d is %v", i, st.Phase)
		}
	}
}

// An attempt that a server refused because of an old token was answered: the result of the repeated call is that of the last attempt.
func TestRefusalAfterANewToken(t *testing.T) {
	denied := rpctypes.ErrGRPCPermissionDenied
	for _, c := range []struct {
		first error
		known bool
	}{
		{rpctypes.ErrGRPCInvalidAuthToken, true},
		{rpctypes.ErrGRPCAuthOldRevision, true},
		{rpctypes.ErrGRPCUserEmpty, true},
		{status.Error(codes.Unavailable, "transport is closing"), false},
	} {
		var call txnCall
		for _, err := range []error{c.first, denied} {
			call.to.Addr = &net.TCPAddr{}
			call.finish(err)
		}
		if err := call.judge(t.Context(), denied); errors.Is(err, denied) != c.known {
			t.Errorf("after %v: %v", c.first, err)
		}
	}
}

// A refused token says nothing about the next attempt: if that one is not heard of, it may have been carried out.
func TestNextAttemptAfterARefusedToken(t *testing.T) {
	ended, cancel := context.WithTimeout(t.Context(), 0)
	defer cancel()
	timeUp := status.FromContextError(ended.Err()).Err()
	for _, c := range []struct {
		finished []error
		unsent   bool
	}{
		{[]error{rpctypes.ErrGRPCInvalidAuthToken}, false},
		{[]error{timeUp}, true}, // without a stream
	} {
		var call txnCall
		for _, err := range c.finished {
			call.to.Addr = nowhere{}
			if refusesToken(err) {
				call.to.Addr = &net.TCPAddr{}
			}
			call.finish(err)
		}
		var unsent *unsentError
		if err := call.judge(ended, timeUp); errors.As(err, &unsent) != c.unsent {
			t.Errorf("after %v: %v", c.finished, err)
		}
	}
}
