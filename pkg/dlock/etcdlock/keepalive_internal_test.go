package etcdlock

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

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
