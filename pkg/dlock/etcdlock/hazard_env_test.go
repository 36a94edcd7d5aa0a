package etcdlock_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/ceyewan/genesis/internal/faultproxy"
	"github.com/ceyewan/genesis/internal/hazardtest"
	"github.com/ceyewan/genesis/internal/servers"
	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/etcdlock"
)

// An etcdEnv is one server behind a proxy.
type etcdEnv struct {
	server *servers.Etcd
	proxy  *faultproxy.Proxy
	client *clientv3.Client // past the proxy
	calls  hazardtest.Calls
	silent atomic.Bool // watches are held

	mu       sync.Mutex
	pending  map[int64]int       // keep-alives that are not answered, by lease
	renewals map[int64]time.Time // when the last answered one left, by lease
	leases   map[string]int64    // of locks
}

func openEnv(tb testing.TB) hazardtest.Env {
	tb.Helper()
	e := &etcdEnv{server: testenv.Etcd(tb), pending: map[int64]int{}, renewals: map[int64]time.Time{}, leases: map[string]int64{}}
	e.proxy, e.client = testenv.Proxy(tb, e.server.Addr()), dial(tb, e.server.Endpoint())
	e.proxy.InterceptGRPC(e.rule)
	tb.Cleanup(e.calls.Heal)
	return e
}

// Traits: etcd writes to the disk before it answers.
func (e *etcdEnv) Traits() hazardtest.Traits {
	return hazardtest.Traits{
		ShortTTL: time.Second,
		Slow:     true,
		Servers:  1,

		WaiterTTL:     testenv.UnderStress(6050*time.Millisecond, 1050*time.Millisecond), // on a lease of a second more
		DeadTTL:       testenv.UnderStress(6*time.Second, 5*time.Second),                 // an unlock has a third of it
		DeadWaiters:   testenv.UnderStress(25*time.Second, 6500*time.Millisecond),        // one lease each are fifty
		Forgotten:     testenv.UnderStress(7*time.Second+beforeLease, 5500*time.Millisecond),
		Unpushed:      testenv.UnderStress(15*time.Second, 1500*time.Millisecond),
		InOrder:       true,
		IdleCPU:       testenv.UnderStress(.5, .05), // a waiter that asks all the time takes one
		Watches:       3,                            // each holder watches its own key
		HolderWatches: 1,
		EarlyLoss:     testenv.UnderStress(1500*time.Millisecond, 50*time.Millisecond),

		Healed:   testenv.UnderStress(beforeLease, time.Second),
		HandOver: testenv.UnderStress(beforeLease, 100*time.Millisecond),
		Close:    testenv.UnderStress(beforeLease, 3*time.Second),
	}
}

func (e *etcdEnv) Endpoints() []string { return []string{e.server.Endpoint()} }

// Proxied returns a client that tells the proxy what its calls mean: on the wire, all of them are
// transactions.
func (e *etcdEnv) Proxied(tb testing.TB) driver.Opener {
	tb.Helper()
	client, err := clientv3.New(clientv3.Config{
		Endpoints: []string{"http://" + e.proxy.Addr()}, Logger: zap.NewNop(),
		DialOptions: []grpc.DialOption{grpc.WithChainUnaryInterceptor(e.unary), grpc.WithChainStreamInterceptor(e.stream)},
	})
	check(tb, err)
	tb.Cleanup(func() { _ = client.Close() })
	return etcdlock.New(client)
}

func (e *etcdEnv) unary(ctx context.Context, path string, req, reply any, cc *grpc.ClientConn, call grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	if op, known := opOf(req); known {
		ctx = metadata.AppendToOutgoingContext(ctx, faultproxy.MarkHeader, strconv.Itoa(int(op)))
	}
	if path != grantPath {
		return call(ctx, path, req, reply, cc, opts...)
	}
	sent := time.Now()
	err := call(ctx, path, req, reply, cc, opts...)
	if err == nil {
		granted, _ := reply.(*etcdserverpb.LeaseGrantResponse)
		e.mu.Lock()
		defer e.mu.Unlock()
		e.renewals[granted.GetID()] = sent
	}
	return err
}

// rule decides on a call when the proxy has it.
func (e *etcdEnv) rule(_, mark string) (drop bool, until <-chan struct{}) {
	op, err := strconv.Atoi(mark)
	if err != nil {
		return false, nil
	}
	v := e.calls.Next(0, hazardtest.Op(op))
	return v.Lose, v.Hold
}

func (e *etcdEnv) stream(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, path string, call grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	stream, err := call(ctx, desc, cc, path, opts...)
	if err != nil || path != keepAlivePath {
		return stream, err
	}
	return &keepAliveStream{ClientStream: stream, env: e}, nil
}

// A keepAliveStream knows when keep-alives were sent. They are answered in order.
type keepAliveStream struct {
	grpc.ClientStream
	env  *etcdEnv
	sent []keepAlive // that are not answered; guarded by env.mu
}

type keepAlive struct {
	lease int64
	at    time.Time
}

func (s *keepAliveStream) SendMsg(m any) error {
	alive, _ := m.(*etcdserverpb.LeaseKeepAliveRequest)
	s.env.mu.Lock()
	s.sent = append(s.sent, keepAlive{alive.GetID(), time.Now()})
	s.env.pending[alive.GetID()]++
	s.env.mu.Unlock()
	return s.ClientStream.SendMsg(m)
}

func (s *keepAliveStream) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	s.env.mu.Lock()
	defer s.env.mu.Unlock()
	if err != nil { // the stream is over
		for _, sent := range s.sent {
			s.env.pending[sent.lease]--
		}
		s.sent = nil
		return err
	}
	first := s.sent[0]
	s.env.pending[first.lease]--
	s.env.renewals[first.lease] = first.at
	s.sent = s.sent[1:]
	return nil
}

func (e *etcdEnv) Renewed(tb testing.TB, key string) (time.Time, bool) {
	tb.Helper()
	e.mu.Lock()
	lease, known := e.leases[key]
	e.mu.Unlock()
	if !known {
		lease = e.holder(tb, key).Lease
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.leases[key] = lease
	return e.renewals[lease], e.pending[lease] == 0
}

// opOf returns the operation of a call. Claims are put and deleted; a release may put a tombstone.
func opOf(req any) (hazardtest.Op, bool) {
	switch r := req.(type) {
	case *etcdserverpb.DeleteRangeRequest:
		return hazardtest.Release, true
	case *etcdserverpb.TxnRequest:
		puts := false
		for _, op := range slices.Concat(r.Success, r.Failure) {
			put := op.GetRequestPut()
			if op.GetRequestDeleteRange() != nil || put != nil && strings.Contains(string(put.Key), "%tombstone/") {
				return hazardtest.Release, true
			}
			puts = puts || put != nil
		}
		return hazardtest.Acquire, puts
	}
	return 0, false
}

func (e *etcdEnv) Direct(tb testing.TB) driver.Opener {
	tb.Helper()
	return etcdlock.New(dial(tb, e.server.Endpoint()))
}

func (e *etcdEnv) Claims(tb testing.TB, key string) (claims []hazardtest.Claim) {
	tb.Helper()
	for i, kv := range storedClaims(tb, e.client, key) {
		var stored struct {
			ID string `json:"id"`
			driver.Info
		}
		_ = json.Unmarshal(kv.Value, &stored) // a plain client stores something else
		c := hazardtest.Claim{ID: stored.ID, Token: kv.CreateRevision, Text: kv.String(), Purpose: stored.Purpose, Since: fmt.Sprint(kv.CreateRevision)}
		if i == 0 {
			c.Sooner, c.Later = e.leaseEnds(tb, kv)
		}
		claims = append(claims, c)
	}
	return claims
}

// leaseEnds returns the times between which the lease of a claim ends: etcd reports it in seconds,
// and it is not known when etcd read its clock.
func (e *etcdEnv) leaseEnds(tb testing.TB, kv *mvccpb.KeyValue) (sooner, later time.Time) {
	tb.Helper()
	asked := time.Now()
	left, err := e.client.TimeToLive(context.Background(), clientv3.LeaseID(kv.Lease))
	check(tb, err)
	ttl := time.Duration(left.TTL) * time.Second
	return asked.Add(ttl), time.Now().Add(ttl + time.Second)
}

// Lease returns what keeps a lock, and all others of its Client with the same TTL.
func (e *etcdEnv) Lease(tb testing.TB, key string) int64 {
	tb.Helper()
	return e.holder(tb, key).Lease
}

func (e *etcdEnv) Leftovers(tb testing.TB) []string {
	tb.Helper()
	return leftovers(tb, e.client)
}

// Grants counts the writes of the server: there must be no other writes.
func (e *etcdEnv) Grants(tb testing.TB, key string) func(int64) error {
	tb.Helper()
	before := revision(tb, e.client)
	return func(token int64) error {
		writes := revision(tb, e.client) - before
		if writes != 1 || token != before+1 {
			return fmt.Errorf("%d writes for %q with token %d, after revision %d: it was granted again", writes, key, token, before)
		}
		return nil
	}
}

// Carried counts all writes.
func (e *etcdEnv) Carried(tb testing.TB, _ hazardtest.Op) func() int {
	tb.Helper()
	before := handledWrites(tb, e.server)
	return func() int { return handledWrites(tb, e.server) - before }
}

func (e *etcdEnv) Lose(op hazardtest.Op, n int) *hazardtest.Hits { return e.calls.Lose(op, n, 1) }

func (e *etcdEnv) Hold(op hazardtest.Op, n int) (*hazardtest.Hits, func()) {
	return e.calls.Hold(op, n, 1)
}

func (e *etcdEnv) DropPushes() {
	e.silent.Store(true)
	e.proxy.HoldGRPC(watchPath, math.MaxInt)
}

// PushesDropped checks the watches that were requested, and those that the server created.
func (e *etcdEnv) PushesDropped(tb testing.TB) {
	tb.Helper()
	if asked, made := e.proxy.GRPCCalls()[watchPath], e.Subscriptions(tb); asked == 0 || made != 0 {
		tb.Errorf("%d watches were asked for, %d made", asked, made)
	}
}

func (e *etcdEnv) StallSubscriptions() func() bool {
	e.DropPushes()
	e.proxy.Cut() // the watch of an earlier lock may be open
	before := e.proxy.GRPCCalls()[watchPath]
	return func() bool { return e.proxy.GRPCCalls()[watchPath] > before }
}

func (e *etcdEnv) Subscriptions(tb testing.TB) int {
	tb.Helper()
	return countWatchers(tb, e.server.Endpoint())
}

// Requests also counts messages in streams.
func (e *etcdEnv) Requests(tb testing.TB) int {
	tb.Helper()
	return metric(tb, e.server.Endpoint(), "grpc_server_msg_received_total")
}

func (e *etcdEnv) Delay(up, down time.Duration) { e.proxy.Delay(up, down) }
func (e *etcdEnv) BlackHole(on bool)            { e.proxy.BlackHole(on) }
func (e *etcdEnv) Refuse(on bool)               { e.proxy.Refuse(on) }
func (e *etcdEnv) Cut()                         { e.proxy.Cut() }

func (e *etcdEnv) Heal() {
	e.calls.Heal()
	e.proxy.Heal()
	e.proxy.InterceptGRPC(e.rule)
	if e.silent.Load() {
		e.DropPushes()
	}
}

func (e *etcdEnv) Pause(tb testing.TB, d time.Duration) {
	tb.Helper()
	check(tb, e.server.Pause())
	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	_, err := e.client.Get(ctx, "k")
	if err == nil {
		tb.Error("the server answers: the fault did not happen")
	}
	<-ctx.Done()
	check(tb, e.server.Resume())
}

func (e *etcdEnv) Expire(tb testing.TB, key string) {
	tb.Helper()
	_, err := e.client.Revoke(context.Background(), clientv3.LeaseID(e.holder(tb, key).Lease))
	check(tb, err)
}

func (e *etcdEnv) Delete(tb testing.TB, key string) {
	tb.Helper()
	_, err := e.client.Delete(context.Background(), string(e.holder(tb, key).Key))
	check(tb, err)
}

// Owned returns a transaction that compares the owner of the lock.
func (e *etcdEnv) Owned(tb testing.TB, key string, token int64) *hazardtest.OwnedValue {
	tb.Helper()
	still, err := etcdlock.IsOwner(context.Background(), e.client, etcdlock.Name(key), token)
	check(tb, err)
	at := "owned " + key
	return &hazardtest.OwnedValue{
		Write: func(value string) bool {
			resp, err := e.client.Txn(context.Background()).If(still).Then(clientv3.OpPut(at, value)).Commit()
			check(tb, err)
			return resp.Succeeded
		},
		Read: func() string {
			resp, err := e.client.Get(context.Background(), at)
			check(tb, err)
			if len(resp.Kvs) != 1 {
				tb.Fatalf("%d values at %q", len(resp.Kvs), at)
			}
			return string(resp.Kvs[0].Value)
		},
	}
}

func (e *etcdEnv) holder(tb testing.TB, key string) *mvccpb.KeyValue {
	tb.Helper()
	claims := storedClaims(tb, e.client, key)
	if len(claims) == 0 {
		tb.Fatal("nothing is stored: the fault did not happen")
	}
	return claims[0]
}
