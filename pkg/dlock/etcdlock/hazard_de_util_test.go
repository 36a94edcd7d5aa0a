package etcdlock_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/ceyewan/genesis/internal/servers"
	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/etcdlock"
)

// The tests TestD… and TestE… are named after the hazards that they make happen.

// deSlack is what a machine may add to a bound in time: half a second if it has nothing
// else to do, and else so much that only what never happens comes later.
var deSlack = testenv.UnderStress(20*time.Second, 500*time.Millisecond)

// The calls of gRPC that tests disturb or count.
const (
	deTxnPath   = "/etcdserverpb.KV/Txn"
	deWatchPath = "/etcdserverpb.Watch/Watch"
)

// deURL is where clients of a proxy connect.
func deURL(p *servers.Proxy) string { return "http://" + p.Addr() }

// deOn returns a Client on an etcd client, which the end of the test closes.
func deOn(t testing.TB, client *clientv3.Client, cfg dlock.Config) *dlock.Client {
	t.Helper()
	c, err := dlock.New(&cfg, dlock.WithBackend(etcdlock.New(client)), dlock.WithAdmin())
	deCheck(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// deNew is a Client with defaults on an etcd client of its own.
func deNew(t testing.TB, endpoints ...string) *dlock.Client {
	t.Helper()
	return deOn(t, dial(t, endpoints...), dlock.Config{})
}

// deOpen returns the backend alone: nobody renews its claims, so whatever is told
// of them was pushed.
func deOpen(t testing.TB, client *clientv3.Client) driver.Driver {
	t.Helper()
	d, err := etcdlock.New(client).Open(driver.Options{Logger: slog.New(slog.DiscardHandler)})
	deCheck(t, err)
	t.Cleanup(func() { _ = d.Close() })
	return d
}

func deCheck(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func deWant(t testing.TB, err error, want ...error) {
	t.Helper()
	for _, w := range want {
		if !errors.Is(err, w) {
			t.Fatalf("error is %v, want %v", err, w)
		}
	}
}

func deAcquire(t testing.TB, c *dlock.Client, key string, opts ...dlock.LockOption) *dlock.Guard {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	g, err := c.Acquire(ctx, key, opts...)
	deCheck(t, err)
	return g
}

func deUnlock(t testing.TB, g *dlock.Guard) {
	t.Helper()
	deCheck(t, g.Unlock(t.Context()))
}

// deTry takes a key that must be free.
func deTry(t testing.TB, c *dlock.Client, key string, opts ...dlock.LockOption) *dlock.Guard {
	t.Helper()
	g, err := c.TryAcquire(t.Context(), key, opts...)
	deCheck(t, err)
	return g
}

func deAlive(t testing.TB, g *dlock.Guard) {
	t.Helper()
	if err := g.Context().Err(); err != nil || g.Remaining() <= 0 {
		t.Fatalf("the guard of %q is over: %v", g.Key(), context.Cause(g.Context()))
	}
}

// deClose closes a Client, which may take three seconds; without a bound it would wait for
// servers that do not answer.
func deClose(t testing.TB, c *dlock.Client) error {
	t.Helper()
	began, closed := time.Now(), make(chan error, 1)
	go func() { closed <- c.Close() }()
	select {
	case err := <-closed:
		if took := time.Since(began); took > testenv.UnderStress(beforeLease, 3*time.Second) {
			t.Errorf("Close took %v", took)
		}
		return err
	case <-time.After(patience):
		t.Fatal("Close does not return")
		return nil
	}
}

// deLost asserts that the guard is lost within a time that counts from start.
func deLost(t testing.TB, g *dlock.Guard, start time.Time, within time.Duration) {
	t.Helper()
	select {
	case <-g.Done():
	case <-time.After(within + 10*time.Second):
	}
	took := time.Since(start)
	deWant(t, context.Cause(g.Context()), dlock.ErrOwnershipLost)
	if took > within {
		t.Fatalf("lost after %v, want at most %v", took, within)
	}
}

// deLostWithin is deLost for the end of a lease. What the machine took from us comes on top.
func deLostWithin(t testing.TB, g *dlock.Guard, start time.Time, ttl time.Duration, metronome *testenv.Metronome) {
	t.Helper()
	deLost(t, g, start, ttl+patience)
	took, most := time.Since(start), ttl+500*time.Millisecond+metronome.Lost(start)
	if took > most {
		t.Errorf("lost after %v, want at most %v", took, most)
	}
}

// deRenewed waits until each of the guards has been renewed once more.
func deRenewed(t testing.TB, guards ...*dlock.Guard) {
	t.Helper()
	last, renewed := map[*dlock.Guard]time.Duration{}, map[*dlock.Guard]bool{}
	testenv.Eventually(t, patience, "a renewal", func() bool {
		for _, g := range guards {
			left := g.Remaining()
			if left <= 0 {
				t.Fatalf("the guard of %q is over: %v", g.Key(), context.Cause(g.Context()))
			}
			if before, seen := last[g]; seen && left > before {
				renewed[g] = true
			}
			last[g] = left
		}
		return len(renewed) == len(guards)
	})
}

// deLine are the keys below the name of a lock, in their order.
func deLine(t testing.TB, direct *clientv3.Client, key string) []*mvccpb.KeyValue {
	t.Helper()
	resp, err := direct.Get(t.Context(), etcdlock.Name(key)+"/", clientv3.WithPrefix(),
		clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortAscend))
	deCheck(t, err)
	return resp.Kvs
}

// deLeft are the keys of claims: everything but bars.
func deLeft(t testing.TB, direct *clientv3.Client) []string {
	t.Helper()
	resp, err := direct.Get(t.Context(), "\x00", clientv3.WithFromKey(), clientv3.WithKeysOnly())
	deCheck(t, err)
	var left []string
	for _, kv := range resp.Kvs {
		if !strings.HasPrefix(string(kv.Key), "%bar/") {
			left = append(left, string(kv.Key))
		}
	}
	return left
}

// deRevision counts what was ever written.
func deRevision(t testing.TB, direct *clientv3.Client) int64 {
	t.Helper()
	resp, err := direct.Get(t.Context(), "k", clientv3.WithCountOnly())
	deCheck(t, err)
	return resp.Header.Revision
}

// deLeases is how many leases there are.
func deLeases(t testing.TB, direct *clientv3.Client) int {
	t.Helper()
	resp, err := direct.Leases(t.Context())
	deCheck(t, err)
	return len(resp.Leases)
}

// A deGot is how a call that waited ended.
type deGot struct {
	guard *dlock.Guard
	err   error
	at    time.Time
}

// deAwait starts to wait for key and returns when the server has it queued.
func deAwait(t testing.TB, c *dlock.Client, direct *clientv3.Client, key string, opts ...dlock.LockOption) <-chan deGot {
	t.Helper()
	before := len(deLine(t, direct, key))
	ch, ctx := make(chan deGot, 1), t.Context()
	go func() {
		g, err := c.Acquire(ctx, key, opts...)
		ch <- deGot{g, err, time.Now()}
	}()
	testenv.Eventually(t, patience, "the claim is queued", func() bool { return len(deLine(t, direct, key)) > before })
	return ch
}

// deGrant waits for the end of a wait, which must be a grant.
func deGrant(t testing.TB, ch <-chan deGot) deGot {
	t.Helper()
	select {
	case got := <-ch:
		deCheck(t, got.err)
		return got
	case <-time.After(patience):
		t.Fatalf("not granted within %v", patience)
		return deGot{}
	}
}

// deIdle asserts that a wait goes on.
func deIdle(t testing.TB, ch <-chan deGot) {
	t.Helper()
	select {
	case got := <-ch:
		t.Fatalf("the wait is over: %v", got.err)
	default:
	}
}

// deRef names a claim for a backend that is used alone. Its lease outlives the
// test.
func deRef(key string, n int) driver.Ref {
	return driver.Ref{Key: key, ID: fmt.Sprintf("%032x", n), TTL: time.Minute}
}

// deFile files a claim that may wait, and returns what became of it.
func deFile(t testing.TB, d driver.Driver, ref driver.Ref) driver.State {
	t.Helper()
	st, err := d.Acquire(t.Context(), driver.Request{Ref: ref, Wait: true})
	deCheck(t, err)
	return st
}

// deEvent waits for a push, which must come before the lease of deRef ends.
func deEvent(t testing.TB, d driver.Driver) driver.Event {
	t.Helper()
	select {
	case ev := <-d.Events():
		return ev
	case <-time.After(beforeLease):
		t.Fatalf("nothing was pushed within %v", beforeLease)
		return driver.Event{}
	}
}

// deMetric is the sum of a metric of a server over all its labels.
func deMetric(t testing.TB, endpoint, name string) int {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, endpoint+"/metrics", nil)
	deCheck(t, err)
	request.Close = true
	resp, err := http.DefaultClient.Do(request)
	deCheck(t, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	deCheck(t, err)
	sum, found := 0.0, false
	for line := range strings.Lines(string(text)) {
		label, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		if label == name || strings.HasPrefix(label, name+"{") {
			n, err := strconv.ParseFloat(value, 64)
			deCheck(t, err)
			sum, found = sum+n, true
		}
	}
	if !found {
		t.Fatalf("the server has no metric %s", name)
	}
	return int(sum)
}

// deWatchers is how many watches a server has to serve.
func deWatchers(t testing.TB, endpoint string) int {
	t.Helper()
	return deMetric(t, endpoint, "etcd_debugging_mvcc_watcher_total")
}

// A deSection counts who is inside, and how often there were two.
type deSection struct {
	mu                     sync.Mutex
	inside, entries, twice int
}

func (s *deSection) enter() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.entries++
	if s.inside++; s.inside > 1 {
		s.twice++
	}
}

func (s *deSection) leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.inside--
}

func (s *deSection) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.entries
}

// judge fails the test if somebody overlapped, or hardly anybody was inside.
func (s *deSection) judge(t testing.TB, least int) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.twice != 0 || s.inside != 0 {
		t.Errorf("%d of %d found another inside; %d are still there", s.twice, s.entries, s.inside)
	}
	if s.entries < least {
		t.Errorf("only %d were inside: the test does not bite", s.entries)
	}
}

// The environment of a child process: where the servers are, how often it claims
// the key "k", and with which TTL.
const (
	deChildAt  = "ETCDLOCK_DE_ENDPOINTS"
	deChildN   = "ETCDLOCK_DE_CLAIMS"
	deChildTTL = "ETCDLOCK_DE_TTL"
)

// TestHelperProcessDE is a process that claims "k" some times, says so, and is then
// killed. Without its environment it does nothing.
func TestHelperProcessDE(t *testing.T) {
	if os.Getenv(deChildAt) == "" {
		return
	}
	n, err := strconv.Atoi(os.Getenv(deChildN))
	deCheck(t, err)
	ttl, err := time.ParseDuration(os.Getenv(deChildTTL))
	deCheck(t, err)
	client := dial(t, strings.Split(os.Getenv(deChildAt), ",")...)
	c := deOn(t, client, dlock.Config{})
	for range n {
		deAwait(t, c, client, "k", dlock.WithTTL(ttl))
	}
	fmt.Println("ready")
	select {}
}

// deChild starts a process with n claims on "k", and returns when they are filed.
func deChild(t testing.TB, n int, ttl time.Duration, endpoints ...string) *os.Process {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestHelperProcessDE$", "-test.timeout=120s")
	cmd.Env = append(os.Environ(), deChildAt+"="+strings.Join(endpoints, ","), deChildN+"="+strconv.Itoa(n), deChildTTL+"="+ttl.String())
	out, err := cmd.StdoutPipe()
	deCheck(t, err)
	deCheck(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // it was killed: that is its error
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil || line != "ready\n" {
		t.Fatalf("the child said %q, %v", line, err)
	}
	return cmd.Process
}
