package etcdlock_test

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/ceyewan/genesis/internal/faultproxy"
	"github.com/ceyewan/genesis/internal/hazardtest"
	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/etcdlock"
)

// slack is what a machine may add to a time limit: half a second if it is idle, and otherwise so
// much that only an event that never happens comes later.
var slack = testenv.UnderStress(20*time.Second, 500*time.Millisecond)

// urlOf returns the URL for clients of a proxy.
func urlOf(p *faultproxy.Proxy) string { return "http://" + p.Addr() }

// locksOn returns a Client on an etcd client. It is closed when the test ends.
func locksOn(t testing.TB, client *clientv3.Client, cfg dlock.Config) *dlock.Client {
	t.Helper()
	cfg.DefaultTTL = cmp.Or(cfg.DefaultTTL, testenv.Lease)
	c, err := dlock.New(&cfg, dlock.WithBackend(etcdlock.New(client)), dlock.WithAdmin())
	check(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// locksAt returns a Client whose locks last testenv.Lease, on its own etcd client.
func locksAt(t testing.TB, endpoints ...string) *dlock.Client {
	t.Helper()
	return locksOn(t, dial(t, endpoints...), dlock.Config{})
}

// openDriver returns the backend alone: no engine renews its claims, so every event about them was
// pushed.
func openDriver(t testing.TB, client *clientv3.Client) driver.Driver {
	t.Helper()
	d, err := etcdlock.New(client).Open(driver.Options{Logger: slog.New(slog.DiscardHandler)})
	check(t, err)
	t.Cleanup(func() { _ = d.Close() })
	return d
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wantError(t testing.TB, err error, want ...error) {
	t.Helper()
	for _, w := range want {
		if !errors.Is(err, w) {
			t.Fatalf("error is %v, want %v", err, w)
		}
	}
}

func acquire(t testing.TB, c *dlock.Client, key string, opts ...dlock.LockOption) *dlock.Guard {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	g, err := c.Acquire(ctx, key, opts...)
	check(t, err)
	return g
}

func unlock(t testing.TB, g *dlock.Guard) {
	t.Helper()
	hazardtest.Unlock(t, g)
}

// released unlocks a guard. Its claim is deleted when Unlock returns, or soon if the machine stalled.
func released(t testing.TB, direct *clientv3.Client, g *dlock.Guard) {
	t.Helper()
	isStored := func() bool {
		return slices.ContainsFunc(storedClaims(t, direct, g.Key()), func(kv *mvccpb.KeyValue) bool { return kv.CreateRevision == g.Token() })
	}
	began := time.Now()
	err := g.Unlock(t.Context())
	if hazardtest.GaveUp(t, err, began) {
		testenv.Eventually(t, patience, "the Client goes on releasing", func() bool { return !isStored() })
		return
	}
	check(t, err)
	if isStored() {
		t.Errorf("%q is unlocked, and stored", g.Key())
	}
}

// tryAcquire takes a key that must be free.
func tryAcquire(t testing.TB, c *dlock.Client, key string, opts ...dlock.LockOption) *dlock.Guard {
	t.Helper()
	began := time.Now()
	g, err := c.TryAcquire(t.Context(), key, opts...)
	if hazardtest.GaveUp(t, err, began) { // its claim may still be there
		return acquire(t, c, key, opts...)
	}
	check(t, err)
	return g
}

// isUnanswered reports whether a call failed because a server did not answer in time.
func isUnanswered(err error) bool {
	return errors.Is(err, dlock.ErrUnknownOutcome) || errors.Is(err, dlock.ErrUnavailable)
}

func alive(t testing.TB, g *dlock.Guard) {
	t.Helper()
	if err := g.Context().Err(); err != nil || g.Remaining() <= 0 {
		t.Fatalf("the guard of %q is over: %v", g.Key(), context.Cause(g.Context()))
	}
}

// closeInTime closes a Client, which may take three seconds; without a timeout it would wait for
// servers that do not answer.
func closeInTime(t testing.TB, c *dlock.Client) error {
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

// wantLost asserts that the guard is lost within a time that counts from start.
func wantLost(t testing.TB, g *dlock.Guard, start time.Time, within time.Duration) {
	t.Helper()
	select {
	case <-g.Done():
	case <-time.After(within + 10*time.Second):
	}
	took := time.Since(start)
	wantError(t, context.Cause(g.Context()), dlock.ErrOwnershipLost)
	if took > within {
		t.Fatalf("lost after %v, want at most %v", took, within)
	}
}

// wantLostWithin is wantLost for the end of a lease. It adds the time that the machine took from
// the test.
func wantLostWithin(t testing.TB, g *dlock.Guard, start time.Time, ttl time.Duration, metronome *testenv.Metronome) {
	t.Helper()
	wantLost(t, g, start, ttl+patience)
	took, most := time.Since(start), ttl+500*time.Millisecond+metronome.Lost(start)
	if took > most {
		t.Errorf("lost after %v, want at most %v", took, most)
	}
}

// awaitRenewal waits until each of the guards has been renewed once more.
func awaitRenewal(t testing.TB, guards ...*dlock.Guard) {
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

// outlive waits until guards have been renewed for longer than a lease.
func outlive(t testing.TB, guards ...*dlock.Guard) {
	t.Helper()
	for began := time.Now(); time.Since(began) < guards[0].TTL()+time.Second; {
		awaitRenewal(t, guards...)
	}
}

// storedClaims returns the keys below the name of a lock, in order.
func storedClaims(t testing.TB, direct *clientv3.Client, key string) []*mvccpb.KeyValue {
	t.Helper()
	resp, err := direct.Get(t.Context(), etcdlock.Name(key)+"/", clientv3.WithPrefix(),
		clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortAscend))
	check(t, err)
	return resp.Kvs
}

// revision returns the store's revision, which counts all writes.
func revision(t testing.TB, direct *clientv3.Client) int64 {
	t.Helper()
	resp, err := direct.Get(t.Context(), "k", clientv3.WithCountOnly())
	check(t, err)
	return resp.Header.Revision
}

// countLeases returns how many leases exist.
func countLeases(t testing.TB, direct *clientv3.Client) int {
	t.Helper()
	resp, err := direct.Leases(t.Context())
	check(t, err)
	return len(resp.Leases)
}

// An outcome is the result of a call that waited.
type outcome struct {
	guard *dlock.Guard
	err   error
	at    time.Time
}

// startWait starts to wait for key and returns when the server has it queued.
func startWait(t testing.TB, c *dlock.Client, direct *clientv3.Client, key string, opts ...dlock.LockOption) <-chan outcome {
	t.Helper()
	before := len(storedClaims(t, direct, key))
	ch, ctx := make(chan outcome, 1), t.Context()
	go func() {
		g, err := c.Acquire(ctx, key, opts...)
		ch <- outcome{g, err, time.Now()}
	}()
	testenv.Eventually(t, patience, "the claim is queued", func() bool { return len(storedClaims(t, direct, key)) > before })
	return ch
}

// granted waits for the end of a wait, which must be a grant.
func granted(t testing.TB, ch <-chan outcome) outcome {
	t.Helper()
	select {
	case got := <-ch:
		check(t, got.err)
		return got
	case <-time.After(patience):
		t.Fatalf("not granted within %v", patience)
		return outcome{}
	}
}

// stillWaits asserts that a wait has not ended.
func stillWaits(t testing.TB, ch <-chan outcome) {
	t.Helper()
	select {
	case got := <-ch:
		t.Fatalf("the wait is over: %v", got.err)
	default:
	}
}

// refOf names a claim for a backend that is used alone. Its lease outlives the test.
func refOf(key string, n int) driver.Ref {
	return driver.Ref{Key: key, ID: fmt.Sprintf("%032x", n), TTL: time.Minute}
}

// submit submits a claim that may wait, and returns its state.
func submit(t testing.TB, d driver.Driver, ref driver.Ref) (st driver.State) {
	t.Helper()
	answered(t, func() (err error) { st, err = d.Acquire(t.Context(), driver.Request{Ref: ref, Wait: true}); return err })
	return st
}

// renew renews a claim, and returns its state.
func renew(t testing.TB, d driver.Driver, ref driver.Ref) driver.State {
	t.Helper()
	var states []driver.State
	answered(t, func() (err error) { states, err = d.Renew(t.Context(), []driver.Ref{ref}); return err })
	return states[0]
}

var answered = etcdlock.Answered

// nextEvent waits for a push, which must come before the lease of refOf ends.
func nextEvent(t testing.TB, d driver.Driver) driver.Event {
	t.Helper()
	select {
	case ev := <-d.Events():
		return ev
	case <-time.After(beforeLease):
		t.Fatalf("nothing was pushed within %v", beforeLease)
		return driver.Event{}
	}
}

// allGranted asserts that the next n events of a driver grant n different locks.
func allGranted(t *testing.T, d driver.Driver, n int) {
	t.Helper()
	granted := map[string]bool{}
	for range n {
		ev := nextEvent(t, d)
		if ev.State.Phase != driver.Held {
			t.Fatalf("told %v", ev.State.Phase)
		}
		granted[ev.Key] = true
	}
	if len(granted) != n {
		t.Errorf("only %d of %d were granted", len(granted), n)
	}
}

// metric returns the sum of a server metric over all its labels.
func metric(t testing.TB, endpoint, name string) int {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, endpoint+"/metrics", nil)
	check(t, err)
	request.Close = true
	resp, err := http.DefaultClient.Do(request)
	check(t, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	check(t, err)
	sum, found := 0.0, false
	for line := range strings.Lines(string(text)) {
		label, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		if label == name || strings.HasPrefix(label, name+"{") {
			n, err := strconv.ParseFloat(value, 64)
			check(t, err)
			sum, found = sum+n, true
		}
	}
	if !found {
		t.Fatalf("the server has no metric %s", name)
	}
	return int(sum)
}

// countWatchers returns how many watches a server serves.
func countWatchers(t testing.TB, endpoint string) int {
	t.Helper()
	return metric(t, endpoint, "etcd_debugging_mvcc_watcher_total")
}

// A section counts the claims inside, and how often there were two.
type section struct {
	mu                     sync.Mutex
	inside, entries, twice int
}

func (s *section) enter() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.entries++
	s.inside++
	if s.inside > 1 {
		s.twice++
	}
}

func (s *section) leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.inside--
}

func (s *section) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.entries
}

// judge fails the test if two claims overlapped, or if too few were inside.
func (s *section) judge(t testing.TB, least int) {
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

// The environment of a child process: the endpoints of the servers, how often it claims the key
// "k", and with which TTL.
const (
	claimantEndpoints = "ETCDLOCK_DE_ENDPOINTS"
	claimantClaims    = "ETCDLOCK_DE_CLAIMS"
	claimantTTL       = "ETCDLOCK_DE_TTL"
)

// TestHelperProcess is a process that claims "k" some times, reports it, and is then killed.
// Without its environment it does nothing.
func TestHelperProcess(t *testing.T) {
	if os.Getenv(claimantEndpoints) == "" {
		return
	}
	n, err := strconv.Atoi(os.Getenv(claimantClaims))
	check(t, err)
	ttl, err := time.ParseDuration(os.Getenv(claimantTTL))
	check(t, err)
	client := dial(t, strings.Split(os.Getenv(claimantEndpoints), ",")...)
	c := locksOn(t, client, dlock.Config{})
	for range n {
		startWait(t, c, client, "k", dlock.WithTTL(ttl))
	}
	fmt.Println("ready")
	select {}
}

// startClaimant starts a process with n claims on "k", and returns when they are submitted.
func startClaimant(t testing.TB, n int, ttl time.Duration, endpoints ...string) *os.Process {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestHelperProcess$", "-test.timeout=120s")
	cmd.Env = append(os.Environ(), claimantEndpoints+"="+strings.Join(endpoints, ","), claimantClaims+"="+strconv.Itoa(n), claimantTTL+"="+ttl.String())
	out, err := cmd.StdoutPipe()
	check(t, err)
	check(t, cmd.Start())
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
