package redislock

import (
	"context"
	"errors"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/internal/redisnode"
)

// A long round trip without an answer marks its master as stalled, so that renewals at other masters do not wait for
// it. The next answer ends that. A short one shows nothing.
func TestUnansweredTripMarksTheMaster(t *testing.T) {
	p := &pipeliner{driver: &redisDriver{}}
	for _, trip := range []struct {
		took     time.Duration
		answered bool
		stalled  bool
	}{{0, false, false}, {time.Minute, true, false}, {time.Minute, false, true}, {0, false, true}, {0, true, false}} {
		p.record(time.Now().Add(-trip.took), 1, trip.answered)
		if p.stalled.Load() != trip.stalled {
			t.Errorf("stalled is %v after %+v", p.stalled.Load(), trip)
		}
	}
}

// Only commands on a cluster whose replicas must confirm are redirected by the driver: go-redis redirects the others.
func TestRedirectsOfTheDriver(t *testing.T) {
	moved, ask := replyError("MOVED 1 127.0.0.1:7"), replyError("ASK 1 127.0.0.1:7")
	cluster := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"127.0.0.1:1"}})
	defer func() { _ = cluster.Close() }()
	for _, tc := range []struct {
		driver *redisDriver
		err    error
		to     redirect
		ok     bool
	}{
		{&redisDriver{cluster: cluster, settings: settings{replicas: 1}}, moved, redirect{addr: "127.0.0.1:7"}, true},
		{&redisDriver{cluster: cluster, settings: settings{replicas: 1}}, ask, redirect{addr: "127.0.0.1:7", ask: true}, true},
		{&redisDriver{cluster: cluster, settings: settings{replicas: 1}}, nil, redirect{}, false},
		{&redisDriver{cluster: cluster}, moved, redirect{}, false},
		{&redisDriver{settings: settings{replicas: 1}}, moved, redirect{}, false},
	} {
		if to, ok := tc.driver.redirected(tc.err); to != tc.to || ok != tc.ok {
			t.Errorf("%v with %d replicas: %+v, %v", tc.err, tc.driver.settings.replicas, to, ok)
		}
	}
}

// Delayed releases are sent without another call when there are as many as half a batch.
func TestManyDelayedReleasesAreSent(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	d := &redisDriver{ctx: ctx, settings: settings{releaseDelay: time.Hour}}
	p := &d.pipeliner
	p.driver = d
	p.inFlight = maxInFlight // so that they become pending
	for i := range maxBatch / 2 {
		if len(p.delayed) != i || len(p.pending) != 0 {
			t.Fatalf("%d delayed and %d pending after %d releases", len(p.delayed), len(p.pending), i)
		}
		p.sendLater(&pendingCall{})
	}
	if len(p.delayed) != 0 || len(p.pending) != maxBatch/2 {
		t.Errorf("%d delayed and %d pending after half a batch", len(p.delayed), len(p.pending))
	}
	cancel()
	p.delayTimer.Stop()
}

// One script gets a limited number of locks, and on a cluster only locks of one slot.
func TestLocksOfOneScript(t *testing.T) {
	d := &redisDriver{}
	if many := make([]string, 128); !d.CanBatch(many) || d.CanBatch(append(many, "")) {
		t.Error("128 locks are refused, or 129 are not")
	}
	d.bySlot.Store(true)
	if !d.CanBatch([]string{"{a}1", "{a}2"}) || d.CanBatch([]string{"a", "b"}) {
		t.Error("locks of one slot are refused, or those of two are not")
	}
	for _, s := range []settings{{gap: time.Second}, {replicas: 1}} {
		if d := (&redisDriver{settings: s}); d.CanBatch([]string{"a"}) {
			t.Errorf("a batch with %+v", s)
		}
	}
}

// Calls whose callers have left do not hold back another one: it is sent though full batches are in flight.
func TestLeftCallsHoldNothingBack(t *testing.T) {
	d := &redisDriver{ctx: t.Context()}
	p := &d.pipeliner
	p.driver, p.full = d, maxFull
	p.inFlight = maxInFlight // nothing is sent
	ctx, cancel := context.WithCancel(t.Context())
	var callers sync.WaitGroup
	for range maxBatch + 1 {
		callers.Go(func() { _ = p.send(ctx, releaseScript.Command(ctx, []string{"k"}), notInline) })
	}
	for pending := 0; pending < maxBatch+1; runtime.Gosched() {
		p.mu.Lock()
		pending = len(p.pending)
		p.mu.Unlock()
	}
	if !p.congested() {
		t.Error("more than a full batch waits, and a call would be sent")
	}
	cancel()
	callers.Wait()
	if p.congested() {
		t.Error("nobody waits, and a call would be held back")
	}
	if batch := p.next(); len(batch) != 0 || len(p.pending) != 0 || p.left != 0 {
		t.Errorf("%d calls are sent, %d are pending, and %d are counted", len(batch), len(p.pending), p.left)
	}
}

// The claim that too few replicas have confirmed is released within a third of its lease, and within two seconds.
func TestUndoTimeout(t *testing.T) {
	if undoTimeout(3*time.Second) != time.Second || undoTimeout(time.Hour) != 2*time.Second {
		t.Errorf("%v and %v", undoTimeout(3*time.Second), undoTimeout(time.Hour))
	}
}

// Before Redis 7, waiters on a cluster are not notified, and Check warns of it. A single server notifies them.
func TestOldClusterGetsAWarning(t *testing.T) {
	cluster := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"127.0.0.1:1"}})
	defer func() { _ = cluster.Close() }()
	for _, tc := range []struct {
		driver  *redisDriver
		version string
		level   driver.Level
	}{
		{&redisDriver{}, "6.2.14", driver.OK},
		{&redisDriver{cluster: cluster}, "6.2.14", driver.Warning},
		{&redisDriver{}, "7.0.15", driver.OK},
		{&redisDriver{cluster: cluster}, "7.0.15", driver.OK},
	} {
		if f := tc.driver.version(redisnode.Info{"redis_version": tc.version}); f.Level != tc.level {
			t.Errorf("%s on a cluster: %v: %+v", tc.version, tc.driver.cluster != nil, f)
		}
	}
}

// The release of a lock whose name cannot be used on a cluster says so.
func TestReleaseOfAnInvalidName(t *testing.T) {
	d := &redisDriver{cluster: &redis.ClusterClient{}}
	if st, err := d.Release(t.Context(), driver.Ref{Key: "a}b", ID: strings.Repeat("a", 32), TTL: time.Minute}); !errors.Is(err, driver.ErrInvalidKey) {
		t.Errorf("%v, %v", st, err)
	}
}

// The value of a lock without a token is not an answer.
func TestAnswerWithoutAToken(t *testing.T) {
	id := strings.Repeat("a", 32)
	for _, value := range []string{id + ". ", id + ". x 1 - {}", id + "+ 1x 1 - {}"} {
		if a, err := parseAnswer(value, driver.Ref{ID: id}, time.Time{}); !errors.Is(err, ErrUnexpectedReply) {
			t.Errorf("%q: %+v, %v", value, a, err)
		}
	}
}

// A wrongReply answers every script with something else.
type wrongReply struct{}

func (wrongReply) DialHook(next redis.DialHook) redis.DialHook { return next }

func (wrongReply) ProcessHook(redis.ProcessHook) redis.ProcessHook {
	return func(_ context.Context, cmd redis.Cmder) error {
		cmd.(*command).SetVal("something else")
		return nil
	}
}

func (wrongReply) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// An answer that cannot be read is an error for operators too.
func TestInspectAndLookOfAWrongReply(t *testing.T) {
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", ContextTimeoutEnabled: true})
	defer func() { _ = client.Close() }()
	client.AddHook(wrongReply{})
	opened, err := New(client).Open(driver.Options{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	d, _ := opened.(*redisDriver)
	defer func() { _ = d.Close() }()
	if claims, err := d.Inspect(t.Context(), "k"); !errors.Is(err, ErrUnexpectedReply) {
		t.Errorf("Inspect: %v, %v", claims, err)
	}
	if _, n, err := d.Look(t.Context(), "k", ""); !errors.Is(err, ErrUnexpectedReply) {
		t.Errorf("Look: %d, %v", n, err)
	}
}

// docs/backends/redis.md names these limits.
func TestDocumentedLimits(t *testing.T) {
	if attemptTimeout != 25*time.Millisecond || tripTimeout != 750*time.Millisecond || maxInFlight != 6 || maxBatch != 128 || maxFull != 2 {
		t.Error("a limit differs from the document")
	}
}
