package etcdlock_test

import (
	"bufio"
	"context"
	"errors"
	"net/http"
	"path"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"

	"github.com/ceyewan/genesis/internal/servers"
	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/etcdlock"
)

// The tests TestA… and TestB… are named after the hazards that they make happen.

// The calls that locks make.
const (
	abTxn       = "/etcdserverpb.KV/Txn"
	abDelete    = "/etcdserverpb.KV/DeleteRange"
	abGrant     = "/etcdserverpb.Lease/LeaseGrant"
	abKeepAlive = "/etcdserverpb.Lease/LeaseKeepAlive"
)

// abWrites are those that store and delete claims.
var abWrites = []string{abTxn, abDelete}

// abReleases are the calls by which a Client unlocks, at first and if that was not
// answered.
func abReleases(t *testing.T, c *dlock.Client, p *servers.Proxy) (first, again string) {
	t.Helper()
	was, g := abNote(p), abAcquire(t, c, "probe")
	acquired := was.since(abTxn)
	abUnlock(t, g)
	if first = abTxn; was.since(abTxn) == acquired {
		first = abDelete
	}
	g, was = abAcquire(t, c, "probe"), abNote(p)
	p.DropGRPC(first, 1)
	abUnlock(t, g)
	if again = abTxn; was.since(abDelete) == 2 {
		again = abDelete
	}
	if was.broken() == 0 || was.since(abWrites...) != 2 {
		t.Fatalf("an unlock makes other calls than %q", abWrites)
	}
	return first, again
}

var abCtx = context.Background()

const (
	// patience is for what must happen, and whose time says nothing.
	patience = time.Minute
	// beforeLease is for what must happen before a lease of a minute ends: on a machine ten
	// times slower it does, and what only the end of the lease brings does not.
	beforeLease = 30 * time.Second
)

// abElapse lets time pass where time itself is the subject.
func abElapse(d time.Duration) { <-time.After(d) }

// abStarved is how much of our time must be lost before a machine is to blame for
// what it came too late for.
const abStarved = 500 * time.Millisecond

// abVia is where clients reach the server through a proxy.
func abVia(p *servers.Proxy) string { return "http://" + p.Addr() }

// abClient returns a Client as users make one. The end of the test closes it.
func abClient(t *testing.T, endpoint string, cfg dlock.Config) *dlock.Client {
	t.Helper()
	return abClientOn(t, dial(t, endpoint), cfg)
}

func abClientOn(t *testing.T, client *clientv3.Client, cfg dlock.Config) *dlock.Client {
	t.Helper()
	c, err := dlock.New(&cfg, dlock.WithBackend(etcdlock.New(client)), dlock.WithAdmin())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// abWarm makes the Client have a connection, and a lease of its TTL.
func abWarm(t *testing.T, c *dlock.Client) {
	t.Helper()
	abUnlock(t, abAcquire(t, c, "warm"))
}

func abAcquire(t *testing.T, c *dlock.Client, key string, opts ...dlock.LockOption) *dlock.Guard {
	t.Helper()
	ctx, cancel := context.WithTimeout(abCtx, patience)
	defer cancel()
	g, err := c.Acquire(ctx, key, opts...)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func abUnlock(t *testing.T, g *dlock.Guard) {
	t.Helper()
	if err := g.Unlock(abCtx); err != nil {
		t.Fatal(err)
	}
}

func abWant(t *testing.T, err error, want ...error) {
	t.Helper()
	for _, w := range want {
		if !errors.Is(err, w) {
			t.Errorf("error is %v, want %v", err, w)
		}
	}
}

func abAlive(t *testing.T, g *dlock.Guard) {
	t.Helper()
	if g.Context().Err() != nil || g.Remaining() <= 0 {
		t.Errorf("%q is lost: %v", g.Key(), context.Cause(g.Context()))
	}
}

// An abGot is how a call that waited ended.
type abGot struct {
	g  *dlock.Guard
	at time.Time
}

// abAwait starts to wait for a key, and returns when the server has it queued
// behind its holder.
func abAwait(t *testing.T, c *dlock.Client, direct *clientv3.Client, key string) <-chan abGot {
	t.Helper()
	got := make(chan abGot, 1)
	go func() {
		g, err := c.Acquire(abCtx, key, dlock.WithWait(patience))
		if err != nil {
			t.Error(err)
		}
		got <- abGot{g, time.Now()}
	}()
	testenv.Eventually(t, patience, "somebody waits", func() bool { return len(abLine(t, direct, key)) == 2 })
	return got
}

// abLine are the claims on a lock, the holder first.
func abLine(t *testing.T, direct *clientv3.Client, key string) []*mvccpb.KeyValue {
	t.Helper()
	resp, err := direct.Get(abCtx, etcdlock.Name(key)+"/", clientv3.WithPrefix(),
		clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortAscend))
	if err != nil {
		t.Fatal(err)
	}
	return resp.Kvs
}

// abToken is the token of the stored holder, 0 if the lock is free.
func abToken(t *testing.T, direct *clientv3.Client, key string) int64 {
	t.Helper()
	if line := abLine(t, direct, key); len(line) > 0 {
		return line[0].CreateRevision
	}
	return 0
}

// abFree waits until nothing is stored of a lock.
func abFree(t *testing.T, direct *clientv3.Client, key, what string, within time.Duration) {
	t.Helper()
	testenv.Eventually(t, within, what, func() bool { return len(abLine(t, direct, key)) == 0 })
}

// abLeft lists what is stored for good or for a claim. What may stay are the bars
// of IDs, as long as they have a lease.
func abLeft(t *testing.T, direct *clientv3.Client) (left []string) {
	t.Helper()
	resp, err := direct.Get(abCtx, "\x00", clientv3.WithFromKey())
	if err != nil {
		t.Fatal(err)
	}
	for _, kv := range resp.Kvs {
		if !strings.HasPrefix(string(kv.Key), "%bar/") || kv.Lease == 0 {
			left = append(left, string(kv.Key))
		}
	}
	return left
}

// An abCount is what a proxy has carried up to some moment.
type abCount struct {
	proxy *servers.Proxy
	calls map[string]int
	conns int
}

func abNote(p *servers.Proxy) abCount { return abCount{p, p.GRPCCalls(), p.Connections()} }

// since is how many calls of these paths have come since then.
func (c abCount) since(paths ...string) (n int) {
	now := c.proxy.GRPCCalls()
	for _, path := range paths {
		n += now[path] - c.calls[path]
	}
	return n
}

// broken is how many connections had to be replaced since then.
func (c abCount) broken() int { return c.proxy.Connections() - c.conns }

// abHTTP keeps no connections, and thus no goroutines.
var abHTTP = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}

// abHandled is how many writes the server has answered, with whatever result.
func abHandled(t testing.TB, server *servers.Etcd) (sum int) {
	t.Helper()
	response, err := abHTTP.Get(server.Endpoint() + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	for in := bufio.NewScanner(response.Body); in.Scan(); {
		name, value, _ := strings.Cut(in.Text(), "} ")
		if !strings.HasPrefix(name, "grpc_server_handled_total{") {
			continue
		}
		for _, call := range abWrites {
			if strings.Contains(name, `grpc_method="`+path.Base(call)+`"`) {
				n, err := strconv.Atoi(value)
				if err != nil {
					t.Fatal(err)
				}
				sum += n
			}
		}
	}
	return sum
}

// An abWatcher sees when claims are deleted, without faults on the way. Names of keys are
// used again, so that it goes by revisions.
type abWatcher struct {
	mu   sync.Mutex
	gone map[string][]abDeletion
}

type abDeletion struct {
	revision int64
	at       time.Time
}

func abWatch(t *testing.T, direct *clientv3.Client) *abWatcher {
	t.Helper()
	w := &abWatcher{gone: map[string][]abDeletion{}}
	ctx, cancel := context.WithCancel(abCtx)
	events := direct.Watch(ctx, "\x00", clientv3.WithFromKey(), clientv3.WithCreatedNotify(), clientv3.WithFilterPut())
	if resp := <-events; !resp.Created {
		t.Fatalf("no watch: %v", resp.Err())
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for resp := range events {
			w.note(resp.Events)
		}
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	return w
}

func (w *abWatcher) note(events []*clientv3.Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, ev := range events {
		key := string(ev.Kv.Key)
		w.gone[key] = append(w.gone[key], abDeletion{ev.Kv.ModRevision, time.Now()})
	}
}

// when returns when a claim was deleted, and waits for that.
func (w *abWatcher) when(t *testing.T, own *mvccpb.KeyValue) (at time.Time) {
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

// An abSpy sits below a client of etcd. It knows when the calls that a lease counts
// from were sent, and can answer calls in the server's place.
type abSpy struct {
	fault func(path string) error // nil: none

	mu      sync.Mutex
	flying  int           // calls that are not answered
	sent    time.Time     // when the last grant or keep-alive left that was answered
	slowest time.Duration // to be answered
}

// dial returns a client with the spy, which the end of the test closes.
func (s *abSpy) dial(t *testing.T, endpoint string) *clientv3.Client {
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

func (s *abSpy) unary(ctx context.Context, path string, req, reply any, cc *grpc.ClientConn, call grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	if s.fault != nil {
		if err := s.fault(path); err != nil {
			return err
		}
	}
	sent := s.depart()
	err := call(ctx, path, req, reply, cc, opts...)
	s.land(sent, err == nil && path == abGrant)
	return err
}

func (s *abSpy) stream(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, path string, call grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	if path != abKeepAlive {
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
	return &abSpied{ClientStream: stream, spy: s}, nil
}

// An abSpied is a stream of keep-alives.
type abSpied struct {
	grpc.ClientStream
	spy  *abSpy
	mu   sync.Mutex
	sent []time.Time // of what is not answered, in order
}

func (s *abSpied) SendMsg(m any) error {
	if s.spy.fault != nil {
		if err := s.spy.fault(abKeepAlive); err != nil {
			return err
		}
	}
	s.mu.Lock()
	s.sent = append(s.sent, s.spy.depart())
	s.mu.Unlock()
	return s.ClientStream.SendMsg(m)
}

func (s *abSpied) RecvMsg(m any) error {
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

func (s *abSpy) depart() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.flying++
	return time.Now()
}

func (s *abSpy) land(sent time.Time, counts bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.flying--
	if counts {
		s.sent, s.slowest = sent, max(s.slowest, time.Since(sent))
	}
}

// longest is how long the slowest answer took that the lease counts from.
func (s *abSpy) longest() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.slowest
}

// last is when the last call left that the lease counts from. It is quiet if
// nothing is on the way, nor was it just now or will be for half of the interval.
func (s *abSpy) last(interval time.Duration) (sent time.Time, quiet bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	since := time.Since(s.sent)
	return s.sent, s.flying == 0 && since > 20*time.Millisecond && since < interval/2
}

// An abLoss is when the ownership of a guard ends.
type abLoss struct {
	g  *dlock.Guard
	at chan time.Time
}

// abWatchLoss waits for the end of a guard's ownership from now on.
func abWatchLoss(g *dlock.Guard) abLoss {
	l := abLoss{g, make(chan time.Time, 1)}
	context.AfterFunc(g.Context(), func() { l.at <- time.Now() })
	return l
}

// when returns it, and fails the test if it does not come.
func (l abLoss) when(t *testing.T) time.Time {
	t.Helper()
	select {
	case at := <-l.at:
		return at
	case <-time.After(beforeLease):
		t.Fatalf("the loss of %q is not told", l.g.Key())
	}
	return time.Time{}
}
