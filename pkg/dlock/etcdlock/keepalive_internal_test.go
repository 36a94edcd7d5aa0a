package etcdlock

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/ceyewan/genesis/internal/servers"
	"github.com/ceyewan/genesis/internal/testenv"
)

// unanswered returns how many keep-alives of a lease wait for an answer on the current stream.
func (k *keepAliver) unanswered(id clientv3.LeaseID) int {
	k.mu.Lock()
	s := k.stream
	k.mu.Unlock()
	if s == nil {
		return 0
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.pending[int64(id)])
}

// renewals returns how many keep-alives the server has carried out.
func renewals(t *testing.T, server *servers.Etcd) (n int) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.Endpoint()+"/metrics", nil)
	if err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if _, err := fmt.Sscanf(line, "etcd_debugging_lease_renewed_total %d", &n); err == nil {
			return n
		}
	}
	t.Fatal("the server does not count keep-alives")
	return 0
}

// A caller leaves before its keep-alive is answered, and the next one has not reached the server
// when that answer comes: the answer must not count for the later request.
func TestAnswerBelongsToTheOldestKeepAlive(t *testing.T) {
	t.Parallel()
	server := testenv.Etcd(t)
	proxy := testenv.Proxy(t, server.Addr())
	d, client := openInternal(t, "http://"+proxy.Addr())
	lease, err := client.Grant(t.Context(), 60)
	if err != nil {
		t.Fatal(err)
	}
	const within = 30 * time.Second
	if _, ttl, err := d.alive.ask(t.Context(), lease.ID, within); err != nil || ttl != 60 {
		t.Fatal(ttl, err)
	}
	proxy.BlackHoleDown(true)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	before, first := renewals(t, server), make(chan error, 1)
	go func() { _, _, err := d.alive.ask(ctx, lease.ID, within); first <- err }()
	testenv.Eventually(t, patience, "the first has reached the server", func() bool {
		return d.alive.unanswered(lease.ID) == 1 && renewals(t, server) > before
	})
	cancel()
	if err := <-first; !errors.Is(err, context.Canceled) {
		t.Fatalf("the first is answered: %v", err)
	}
	proxy.BlackHoleUp(true)
	began, answered := time.Now(), make(chan time.Time, 1)
	go func() {
		sent, _, err := d.alive.ask(t.Context(), lease.ID, within)
		if err != nil {
			t.Error(err)
		}
		answered <- sent
	}()
	testenv.Eventually(t, patience, "both are unanswered", func() bool { return d.alive.unanswered(lease.ID) == 2 })
	proxy.BlackHoleDown(false)
	testenv.Eventually(t, patience, "the first is answered", func() bool { return d.alive.unanswered(lease.ID) == 1 })
	select {
	case <-answered:
		t.Fatal("the later keep-alive took the answer of the earlier one")
	case <-time.After(200 * time.Millisecond):
	}
	proxy.BlackHoleUp(false)
	if sent := <-answered; sent.Before(began) {
		t.Errorf("counts from %v before it was sent", began.Sub(sent))
	}
}

// A member does not answer: the stream is closed, and the next one works.
func TestOverdueKeepAliveReplacesTheStream(t *testing.T) {
	t.Parallel()
	server := testenv.Etcd(t)
	proxy := testenv.Proxy(t, server.Addr())
	d, client := openInternal(t, "http://"+proxy.Addr())
	lease, err := client.Grant(t.Context(), 60)
	if err != nil {
		t.Fatal(err)
	}
	proxy.HoldGRPC("/etcdserverpb.Lease/LeaseKeepAlive", 1)
	if _, _, err := d.alive.ask(t.Context(), lease.ID, 300*time.Millisecond); !errors.Is(err, errKeepAliveOverdue) {
		t.Fatalf("error is %v", err)
	}
	if _, ttl, err := d.alive.ask(t.Context(), lease.ID, 30*time.Second); err != nil || ttl != 60 {
		t.Error(ttl, err)
	}
	for range 20 {
		if _, _, err := d.alive.ask(t.Context(), lease.ID, 30*time.Second); err != nil {
			t.Fatal(err)
		}
	}
	if n := proxy.GRPCCalls()["/etcdserverpb.Lease/LeaseKeepAlive"]; n != 2 {
		t.Errorf("%d streams", n)
	}
}

// A stream is opened and ends before the caller that waited for it has looked: the caller gets the
// reason, and not a stream that has ended.
func TestStreamThatEndsAtOnce(t *testing.T) {
	t.Parallel()
	d, client := openInternal(t, testenv.Etcd(t).Endpoint())
	lease, err := client.Grant(t.Context(), 60)
	if err != nil {
		t.Fatal(err)
	}
	k := &d.alive
	if _, _, err := k.ask(t.Context(), lease.ID, 30*time.Second); err != nil {
		t.Fatal(err)
	}
	opened := make(chan struct{})
	k.mu.Lock()
	s := k.stream
	k.stream, k.opening = nil, opened
	k.mu.Unlock()
	type result struct {
		stream *keepAliveStream
		err    error
	}
	got := make(chan result, 1)
	go func() {
		stream, err := k.connected(t.Context(), 30*time.Second)
		got <- result{stream, err}
	}()
	testenv.Eventually(t, patience, "the caller waits", func() bool { return strings.Contains(stacks(), "(*keepAliver).connected") })
	k.mu.Lock()
	k.stream, k.err, k.opening = s, nil, nil // as open does
	k.mu.Unlock()
	k.end(s, errKeepAliveOverdue)
	close(opened)
	if r := <-got; r.stream == nil && r.err == nil {
		t.Error("neither a stream nor an error")
	}
}

// The longest pause between attempts to open a stream is a fraction of the time for an answer, so
// that no lease expires because of it. Authentication is expensive for the server, so a client with
// a user waits longer. A short lease shortens the pause permanently.
func TestPauseBetweenStreamsIsAPartOfTheTimeForAnAnswer(t *testing.T) {
	for user, want := range map[string]time.Duration{"": 100 * time.Millisecond, "root": 300 * time.Millisecond} {
		k := &keepAliver{driver: &etcdDriver{client: &clientv3.Client{Username: user}}, stream: &keepAliveStream{}}
		k.backOff.most = time.Second
		for _, step := range []struct{ within, most time.Duration }{
			{time.Hour, time.Second}, {600 * time.Millisecond, want}, {time.Hour, want},
		} {
			s, err := k.connected(t.Context(), step.within)
			if s != k.stream || err != nil {
				t.Fatalf("%v, %v", s, err)
			}
			if k.backOff.most != step.most {
				t.Errorf("user %q, an answer may take %v: pauses of %v, want %v", user, step.within, k.backOff.most, step.most)
			}
		}
	}
}

// An answer belongs to the oldest request of its lease, which is then not overdue any more.
func TestAnswerEndsTheTimeOfItsRequest(t *testing.T) {
	late := func() *time.Timer { return time.AfterFunc(time.Hour, func() {}) }
	first := &keepAliveRequest{overdue: late(), ttl: make(chan int64, 1)}
	second := &keepAliveRequest{overdue: late(), ttl: make(chan int64, 1)}
	s := &keepAliveStream{pending: map[int64][]*keepAliveRequest{7: {first, second}}}
	s.answer(&pb.LeaseKeepAliveResponse{ID: 8, TTL: 5}) // nobody has asked
	s.answer(&pb.LeaseKeepAliveResponse{ID: 7, TTL: 6})
	if len(first.ttl) != 1 || len(second.ttl) != 0 || len(s.pending[7]) != 1 || s.pending[7][0] != second || first.overdue.Stop() {
		t.Errorf("%d and %d answers, %d requests are left", len(first.ttl), len(second.ttl), len(s.pending[7]))
	}
	s.answer(&pb.LeaseKeepAliveResponse{ID: 7, TTL: 0})
	if <-first.ttl != 6 || <-second.ttl != 0 || len(s.pending) != 0 || second.overdue.Stop() {
		t.Errorf("requests of %d leases are left", len(s.pending))
	}
}

// A refusal ends the stream. It is that of the oldest request, and the others were not refused.
func TestRefusalIsThatOfTheOldestRequest(t *testing.T) {
	now := time.Now()
	oldest, later, other := &keepAliveRequest{sent: now}, &keepAliveRequest{sent: now.Add(1)}, &keepAliveRequest{sent: now.Add(2)}
	for range 20 { // in any order
		s := &keepAliveStream{err: rpctypes.ErrPermissionDenied, pending: map[int64][]*keepAliveRequest{1: {later}, 2: {oldest, other}, 3: {other}}}
		s.refuseOldest()
		if !oldest.refused || later.refused || other.refused {
			t.Fatalf("refused are %v, %v and %v", oldest.refused, later.refused, other.refused)
		}
		if err := s.errOf(oldest); !isDenied(err) {
			t.Errorf("the oldest: %v", err)
		}
		if err := s.errOf(later); !errors.Is(err, errKeepAliveDenied) || isDenied(err) {
			t.Errorf("a later one: %v", err)
		}
	}
	(&keepAliveStream{}).refuseOldest() // without requests
	broken := errors.New("broken")
	if err := (&keepAliveStream{err: broken}).errOf(later); !errors.Is(err, broken) {
		t.Errorf("of a broken stream: %v", err)
	}
}

// A stream ends once, for the first reason. Those that have waited for it are told, unless another request was refused.
func TestStreamEndsOnce(t *testing.T) {
	for reason, told := range map[error]error{errKeepAliveOverdue: errKeepAliveOverdue, rpctypes.ErrPermissionDenied: errKeepAliveDenied} {
		canceled := 0
		s := &keepAliveStream{done: make(chan struct{}), cancel: func() { canceled++ }}
		k := &keepAliver{stream: s, backOff: backOff{base: time.Second, most: time.Minute}}
		k.end(s, reason)
		next := &keepAliveStream{done: make(chan struct{})}
		k.stream = next
		k.end(s, errors.New("later"))
		if !errors.Is(s.err, reason) || !errors.Is(k.err, told) || k.stream != next || canceled != 1 || k.backOff.failures != 1 {
			t.Errorf("%v and %v, canceled %d times, %d failures", s.err, k.err, canceled, k.backOff.failures)
		}
	}
}

// An attempt to open a stream has more time after each failure, up to a limit, and more for a client that authenticates.
func TestTimeToOpenAStream(t *testing.T) {
	for user, want := range map[string][]time.Duration{"": {1, 2, 4, 4}, "root": {3, 4, 4, 4}} {
		d := &etcdDriver{client: &clientv3.Client{Username: user}}
		for i, failures := range []int{0, 1, 2, 100} {
			if got := d.openTimeout(failures); got != want[i]*time.Second {
				t.Errorf("user %q after %d failures: %v, want %v s", user, failures, got, int64(want[i]))
			}
		}
	}
}

// Each failure doubles the pause, which is random by half, up to a limit. A success ends that.
func TestPausesGrow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := backOff{base: time.Second, most: 5 * time.Second}
		if b.wait() > 0 {
			t.Error("the first attempt waits")
		}
		for i, want := range []time.Duration{1, 2, 4, 5, 5, 1} {
			if i == 5 {
				b.succeeded()
			}
			b.failed()
			if pause := b.wait(); pause < want*time.Second/2 || pause > want*time.Second*3/2 {
				t.Errorf("after %d failures: %v, want about %d s", i+1, pause, want)
			}
		}
		time.Sleep(time.Hour)
		if b.wait() > 0 {
			t.Error("an hour later, an attempt waits")
		}
		shortest, longest := time.Hour, time.Duration(0)
		for range 1000 {
			pause := jitter(time.Minute)
			shortest, longest = min(shortest, pause), max(longest, pause)
		}
		if shortest < 30*time.Second || longest > 90*time.Second || longest-shortest < 50*time.Second {
			t.Errorf("a minute is varied from %v to %v", shortest, longest)
		}
	})
}
