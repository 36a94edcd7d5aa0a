package etcdlock_test

import (
	"bufio"
	"context"
	"errors"
	"net/http"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"

	"github.com/ceyewan/genesis/internal/faultproxy"
	"github.com/ceyewan/genesis/internal/servers"
	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock"
)

// The calls that locks make.
const (
	txnPath       = "/etcdserverpb.KV/Txn"
	deletePath    = "/etcdserverpb.KV/DeleteRange"
	grantPath     = "/etcdserverpb.Lease/LeaseGrant"
	keepAlivePath = "/etcdserverpb.Lease/LeaseKeepAlive"
	watchPath     = "/etcdserverpb.Watch/Watch"
)

// writePaths are the calls that store and delete claims.
var writePaths = []string{txnPath, deletePath}

// releasePaths returns the calls with which a Client unlocks: the first one, and the retry if that
// was not answered.
func releasePaths(t *testing.T, c *dlock.Client, p *faultproxy.Proxy) (first, again string) {
	t.Helper()
	was, g := countCalls(p), acquire(t, c, "probe")
	acquired := was.since(txnPath)
	unlock(t, g)
	first = txnPath
	if was.since(txnPath) == acquired {
		first = deletePath
	}
	g, was = acquire(t, c, "probe"), countCalls(p)
	p.DropGRPC(first, 1)
	unlock(t, g)
	again = txnPath
	if was.since(deletePath) == 2 {
		again = deletePath
	}
	if was.broken() == 0 || was.since(writePaths...) != 2 {
		t.Fatalf("an unlock makes other calls than %q", writePaths)
	}
	return first, again
}

const (
	// patience is for events that must happen, at any time.
	patience = time.Minute
	// beforeLease is for events that must happen before a lease of a minute ends: even on a machine
	// ten times slower they do, unless only the end of the lease causes them.
	beforeLease = 30 * time.Second
)

// elapse lets time pass where time itself is the subject.
func elapse(d time.Duration) { <-time.After(d) }

// clientAt returns a Client whose locks last testenv.Lease. It is closed when the test ends.
func clientAt(t *testing.T, endpoint string, cfg dlock.Config) *dlock.Client {
	t.Helper()
	return locksOn(t, dial(t, endpoint), cfg)
}

// warm opens a connection of the Client, and creates a lease of its TTL.
func warm(t *testing.T, c *dlock.Client) {
	t.Helper()
	unlock(t, acquire(t, c, "warm"))
}

func expect(t *testing.T, err error, want ...error) {
	t.Helper()
	for _, w := range want {
		if !errors.Is(err, w) {
			t.Errorf("error is %v, want %v", err, w)
		}
	}
}

// storedToken returns the token of the stored holder, or 0 if the lock is free.
func storedToken(t *testing.T, direct *clientv3.Client, key string) int64 {
	t.Helper()
	if claims := storedClaims(t, direct, key); len(claims) > 0 {
		return claims[0].CreateRevision
	}
	return 0
}

// awaitFree waits until no claim of a lock is stored.
func awaitFree(t *testing.T, direct *clientv3.Client, key, what string, within time.Duration) {
	t.Helper()
	testenv.Eventually(t, within, what, func() bool { return len(storedClaims(t, direct, key)) == 0 })
}

// leftovers lists what is stored permanently or for a claim. Tombstones may stay, as long as they
// have a lease.
func leftovers(t testing.TB, direct *clientv3.Client) (left []string) {
	t.Helper()
	resp, err := direct.Get(context.Background(), "\x00", clientv3.WithFromKey())
	if err != nil {
		t.Fatal(err)
	}
	for _, kv := range resp.Kvs {
		if !strings.HasPrefix(string(kv.Key), "%tombstone/") || kv.Lease == 0 {
			left = append(left, string(kv.Key))
		}
	}
	return left
}

// A callCount is what a proxy has forwarded up to some moment.
type callCount struct {
	proxy *faultproxy.Proxy
	calls map[string]int
	conns int
}

func countCalls(p *faultproxy.Proxy) callCount { return callCount{p, p.GRPCCalls(), p.Connections()} }

// since returns how many calls of these paths have come since then.
func (c callCount) since(paths ...string) (n int) {
	now := c.proxy.GRPCCalls()
	for _, path := range paths {
		n += now[path] - c.calls[path]
	}
	return n
}

// broken returns how many connections had to be replaced since then.
func (c callCount) broken() int { return c.proxy.Connections() - c.conns }

// httpOnce keeps no connections, and thus no goroutines.
var httpOnce = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}

// handledWrites returns how many writes the server has answered, with any result.
func handledWrites(t testing.TB, server *servers.Etcd) int {
	t.Helper()
	return counters(t, server, "grpc_server_handled_total", func(labels string) bool {
		return slices.ContainsFunc(writePaths, func(call string) bool {
			return strings.Contains(labels, `grpc_method="`+path.Base(call)+`"`)
		})
	})
}

// receivedMessages returns how many client messages the server has received, of one method or, with
// "", of all methods.
func receivedMessages(t testing.TB, server *servers.Etcd, method string) int {
	t.Helper()
	return counters(t, server, "grpc_server_msg_received_total", func(labels string) bool {
		return method == "" || strings.Contains(labels, `grpc_method="`+method+`"`)
	})
}

// counters returns the sum of the server's counters with this name and matching labels.
func counters(t testing.TB, server *servers.Etcd, name string, matches func(labels string) bool) (sum int) {
	t.Helper()
	response, err := httpOnce.Get(server.Endpoint() + "/metrics")
	check(t, err)
	defer response.Body.Close()
	for in := bufio.NewScanner(response.Body); in.Scan(); {
		counter, value, _ := strings.Cut(in.Text(), "} ")
		labels, ok := strings.CutPrefix(counter, name+"{")
		if !ok || !matches(labels) {
			continue
		}
		n, err := strconv.Atoi(value)
		check(t, err)
		sum += n
	}
	return sum
}

// A deletionWatcher sees when claims are deleted, without faults in between. Keys are reused, so it
// identifies claims by revision.
type deletionWatcher struct {
	mu   sync.Mutex
	gone map[string][]deletion
}

type deletion struct {
	revision int64
	at       time.Time
}

func watchDeletions(t *testing.T, direct *clientv3.Client) *deletionWatcher {
	t.Helper()
	w := &deletionWatcher{gone: map[string][]deletion{}}
	ctx, cancel := context.WithCancel(context.Background())
	events := direct.Watch(ctx, "\x00", clientv3.WithFromKey(), clientv3.WithCreatedNotify(), clientv3.WithFilterPut())
	if resp := <-events; !resp.Created {
		t.Fatalf("no watch: %v", resp.Err())
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for resp := range events {
			w.record(resp.Events)
		}
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	return w
}

func (w *deletionWatcher) record(events []*clientv3.Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, ev := range events {
		key := string(ev.Kv.Key)
		w.gone[key] = append(w.gone[key], deletion{ev.Kv.ModRevision, time.Now()})
	}
}

// when returns when a claim was deleted, and waits for that.
func (w *deletionWatcher) when(t *testing.T, own *mvccpb.KeyValue) (at time.Time) {
	t.Helper()
	testenv.Eventually(t, patience, "the server deletes a claim", func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		for _, d := range w.gone[string(own.Key)] {
			if d.revision > own.CreateRevision {
				at = d.at
				return true
			}
		}
		return false
	})
	return at
}

// A callSpy sits below an etcd client. It knows when the calls that a lease counts from were sent,
// and can answer calls in place of the server.
type callSpy struct {
	fault func(path string) error // nil: none

	mu       sync.Mutex
	inFlight int           // calls that are not answered
	sent     time.Time     // when the last grant or keep-alive left that was answered
	slowest  time.Duration // to be answered
}

// dial returns a client with the spy. It is closed when the test ends.
func (s *callSpy) dial(t *testing.T, endpoint string) *clientv3.Client {
	t.Helper()
	client, err := clientv3.New(clientv3.Config{
		Endpoints: []string{endpoint}, Logger: zap.NewNop(),
		DialOptions: []grpc.DialOption{grpc.WithChainUnaryInterceptor(s.unary), grpc.WithChainStreamInterceptor(s.stream)},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	return client
}

func (s *callSpy) unary(ctx context.Context, path string, req, reply any, cc *grpc.ClientConn, call grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	if s.fault != nil {
		if err := s.fault(path); err != nil {
			return err
		}
	}
	sent := s.depart()
	err := call(ctx, path, req, reply, cc, opts...)
	s.land(sent, err == nil && path == grantPath)
	return err
}

func (s *callSpy) stream(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, path string, call grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	if path != keepAlivePath {
		return call(ctx, desc, cc, path, opts...)
	}
	if s.fault != nil {
		if err := s.fault(path); err != nil {
			return nil, err
		}
	}
	stream, err := call(ctx, desc, cc, path, opts...)
	if err != nil {
		return nil, err
	}
	return &spiedStream{ClientStream: stream, spy: s}, nil
}

// A spiedStream is a stream of keep-alives.
type spiedStream struct {
	grpc.ClientStream
	spy  *callSpy
	mu   sync.Mutex
	sent []time.Time // of what is not answered, in order
}

func (s *spiedStream) SendMsg(m any) error {
	if s.spy.fault != nil {
		if err := s.spy.fault(keepAlivePath); err != nil {
			return err
		}
	}
	s.mu.Lock()
	s.sent = append(s.sent, s.spy.depart())
	s.mu.Unlock()
	return s.ClientStream.SendMsg(m)
}

func (s *spiedStream) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, sent := range s.sent {
		if err == nil && i > 0 {
			s.sent = s.sent[i:]
			return nil
		}
		s.spy.land(sent, err == nil)
	}
	s.sent = nil
	return err
}

func (s *callSpy) depart() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.inFlight++
	return time.Now()
}

func (s *callSpy) land(sent time.Time, counts bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.inFlight--
	if counts {
		s.sent, s.slowest = sent, max(s.slowest, time.Since(sent))
	}
}

// longest returns how long the slowest answer took that the lease counts from.
func (s *callSpy) longest() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.slowest
}

// last returns when the last call was sent that the lease counts from. It is quiet if nothing is in
// flight, nor was just now, nor will be for half of the interval.
func (s *callSpy) last(interval time.Duration) (sent time.Time, quiet bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	since := time.Since(s.sent)
	return s.sent, s.inFlight == 0 && since > 20*time.Millisecond && since < interval/2
}

// A loss is when the ownership of a guard ends.
type loss struct {
	g  *dlock.Guard
	at chan time.Time
}

// watchLoss waits for the end of a guard's ownership from now on.
func watchLoss(g *dlock.Guard) loss {
	l := loss{g, make(chan time.Time, 1)}
	context.AfterFunc(g.Context(), func() { l.at <- time.Now() })
	return l
}

// when returns the time of the loss, and fails the test if there is none.
func (l loss) when(t *testing.T) time.Time {
	t.Helper()
	select {
	case at := <-l.at:
		return at
	case <-time.After(beforeLease):
		t.Fatalf("the loss of %q is not told", l.g.Key())
	}
	return time.Time{}
}
