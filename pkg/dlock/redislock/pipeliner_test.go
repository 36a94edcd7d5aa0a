package redislock_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ceyewan/genesis/internal/faultproxy"
	"github.com/ceyewan/genesis/internal/hazardtest"
	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/internal/redisnode"
	"github.com/ceyewan/genesis/pkg/dlock/redislock"
)

// A cancellable call is made inline if the server has been quick. These tests make it quick first.
// On a busy machine that may fail, so they continue until it has succeeded often enough.
func makeQuick(t *testing.T, ctx context.Context, c *dlock.Client) { //nolint:revive // the test comes first everywhere here
	t.Helper()
	for range 16 {
		if err := c.Lock(ctx, "warm"); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		if err := c.Unlock(ctx, "warm"); err != nil && !hazardtest.GaveUp(t, err, began) {
			t.Fatal(err)
		}
	}
}

// inlineClientAt returns a Client that makes calls inline even on a busy machine.
func inlineClientAt(t *testing.T, addr string) *dlock.Client {
	t.Helper()
	rdb := redis.NewClient(&redis.Options{Addr: addr, ContextTimeoutEnabled: true})
	t.Cleanup(func() { _ = rdb.Close() })
	c, err := dlock.New(&dlock.Config{DefaultTTL: 20 * time.Second}, dlock.WithBackend(redislock.New(rdb, redislock.InlineOnceAnswered())), dlock.WithAdmin())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// untilInline calls round until it has reported inline calls often enough.
func untilInline(t *testing.T, round func() bool) {
	t.Helper()
	end := time.Now().Add(time.Minute)
	for seen, n := 0, testenv.UnderStress(3, 50); seen < n; {
		if round() {
			seen++
		} else if time.Now().After(end) {
			t.Fatalf("only %d of %d calls were made inline", seen, n)
		}
	}
}

// A call that was abandoned early is made again, and its caller does not notice, even if the call
// does not wait. The abandoned call may arrive after the release, and must find the tombstone of
// its ID.
func TestTimedOutAcquireIsMadeAgain(t *testing.T) {
	t.Parallel()
	server := testenv.Redis(t)
	proxy, direct := testenv.Proxy(t, server.Addr()), directTo(t, server)
	c := inlineClientAt(t, proxy.Addr())
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	untilInline(t, func() bool {
		proxy.Heal()
		makeQuick(t, ctx, c)
		direct.FlushDB(t.Context())
		var calls atomic.Int64
		proxy.DeliverAfterClose(true)
		proxy.Intercept(func(cmd []string) faultproxy.Action {
			if kindOf(cmd) == acquiring && cmd[3] != "warm" && calls.Add(1) == 1 {
				elapse(200 * time.Millisecond)
			}
			return faultproxy.Forward
		})
		isFree := func() bool { return direct.Exists(t.Context(), "k").Val() == 0 }
		began := time.Now()
		ok, err := c.TryLock(ctx, "k")
		if redislock.Unanswered(err) && testenv.Stalled(t, began, 500*time.Millisecond) {
			testenv.Eventually(t, time.Minute, "the claim is taken back", func() bool { return isFree() && countTombstones(t, direct) > 0 })
			return false
		}
		if !ok || err != nil {
			t.Fatalf("TryLock: %v, %v", ok, err)
		}
		began = time.Now()
		err = c.Unlock(ctx, "k")
		if hazardtest.GaveUp(t, err, began) {
			testenv.Eventually(t, time.Minute, "the lock is free", isFree)
			return false
		}
		if err != nil {
			t.Fatal(err)
		}
		if calls.Load() == 1 {
			return false
		}
		elapse(300 * time.Millisecond) // until the first has arrived
		if !isFree() {
			t.Error("a claim that arrived late was stored")
		}
		if n := countTombstones(t, direct); n != 1 {
			t.Errorf("%d IDs have tombstones, want 1", n)
		}
		return true
	})
}

// countTombstones returns how many IDs have tombstones.
func countTombstones(t *testing.T, direct *redis.Client) (n int) {
	t.Helper()
	for _, key := range direct.Keys(t.Context(), "*").Val() {
		if strings.Contains(key, "\x01b") {
			n++
		}
	}
	return n
}

// A release that was abandoned early was still carried out. The release that follows finds nothing,
// which is not a loss.
func TestTimedOutReleaseIsMadeAgain(t *testing.T) {
	t.Parallel()
	server := testenv.Redis(t)
	proxy, direct := testenv.Proxy(t, server.Addr()), directTo(t, server)
	c := inlineClientAt(t, proxy.Addr())
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	untilInline(t, func() bool {
		proxy.Heal()
		makeQuick(t, ctx, c)
		check(t, c.Lock(ctx, "k", dlock.WithTTL(time.Hour)))
		isFree := func() bool { return direct.Exists(t.Context(), "k").Val() == 0 }
		var calls atomic.Int64
		proxy.Intercept(func(cmd []string) faultproxy.Action {
			if kindOf(cmd) != releasing || cmd[3] == "warm" || calls.Add(1) > 1 {
				return faultproxy.Forward
			}
			words := make([]any, len(cmd))
			for i := range cmd {
				words[i] = cmd[i]
			}
			if err := direct.Do(t.Context(), words...).Err(); err != nil {
				t.Error(err)
			}
			return faultproxy.Swallow
		})
		began := time.Now()
		err := c.Unlock(ctx, "k")
		if hazardtest.GaveUp(t, err, began) {
			testenv.Eventually(t, time.Minute, "the lock is free", isFree)
			return false
		}
		check(t, err)
		if !isFree() {
			t.Error("the lock is still stored")
		}
		return calls.Load() > 1
	})
}

// An inline call takes no longer than its attempt timeout: a call on a dead link ends soon after
// its context, whether or not the client honors deadlines.
func TestInlineCallEndsWithItsContext(t *testing.T) {
	for _, heeds := range []bool{true, false} {
		t.Run(fmt.Sprintf("heeds=%v", heeds), func(t *testing.T) {
			t.Parallel()
			server := testenv.Redis(t)
			proxy := testenv.Proxy(t, server.Addr())
			c := clientWith(t, &redis.Options{Addr: proxy.Addr(), ContextTimeoutEnabled: heeds, ReadTimeout: time.Minute}, dlock.Config{DefaultTTL: time.Minute})
			for range testenv.UnderStress(5, 50) {
				ctx, cancel := context.WithCancel(t.Context())
				makeQuick(t, ctx, c)
				if err := c.Lock(ctx, "k"); err != nil {
					t.Fatal(err)
				}
				dies(t, proxy, cancel, func() error { return c.Unlock(ctx, "k") }, context.Canceled, dlock.ErrUnknownOutcome)
				ctx, cancel = context.WithCancel(t.Context())
				makeQuick(t, ctx, c)
				dies(t, proxy, cancel, func() error { return c.Lock(ctx, "other") }, context.Canceled)
			}
		})
	}
}

// dies makes a call on a link that has just failed, and cancels it.
func dies(t *testing.T, proxy *faultproxy.Proxy, cancel context.CancelFunc, call func() error, errs ...error) {
	t.Helper()
	proxy.BlackHole(true)
	defer proxy.Heal()
	after := testenv.UnderStress(100*time.Millisecond, 5*time.Millisecond) // the call is under way by then
	time.AfterFunc(after, cancel)
	started := time.Now()
	err := call()
	if errors.Is(err, context.Canceled) || !hazardtest.GaveUp(t, err, started) { // an unlock may have ended before it was canceled
		expect(t, err, errs...)
	}
	if over := time.Since(started) - after; over > testenv.UnderStress(10*time.Second, 100*time.Millisecond) {
		t.Errorf("the call outlived its context by %v", over.Round(time.Millisecond))
	}
}

// A gateHook holds back what is sent: full batches until one channel is closed, and all else until another is. It
// counts the calls that were not answered.
type gateHook struct {
	small, full         chan struct{}
	fullNow, unanswered atomic.Int64 // batches, calls
}

func (*gateHook) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h *gateHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if !strings.HasPrefix(cmd.Name(), "eval") {
			return next(ctx, cmd)
		}
		return h.pass(ctx, h.small, []redis.Cmder{cmd}, func() error {
			err := next(ctx, cmd)
			cmd.SetErr(err) // as go-redis does, after its hooks
			return err
		})
	}
}

func (h *gateHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		gate := h.small
		if len(cmds) == 128 {
			gate = h.full
			h.fullNow.Add(1)
			defer h.fullNow.Add(-1)
		}
		return h.pass(ctx, gate, cmds, func() error { return next(ctx, cmds) })
	}
}

// pass sends once the gate is open.
func (h *gateHook) pass(ctx context.Context, gate chan struct{}, cmds []redis.Cmder, send func() error) (err error) {
	select {
	case <-gate:
		err = send()
	case <-ctx.Done():
		err = ctx.Err()
		for _, cmd := range cmds {
			cmd.SetErr(err)
		}
	}
	if err == nil {
		return nil
	}
	for _, c := range cmds {
		var answer redis.Error
		if cmd, ok := c.(*redisnode.Command); ok && cmd.Val() == nil && !errors.As(cmd.Err(), &answer) {
			h.unanswered.Add(1)
		}
	}
	return err
}

// Thousands of callers at once do not send a server more than two full pipelines at a time. Those that wait for longer than a
// round trip may take do not fail for that.
func TestManyCallersAtOnce(t *testing.T) {
	t.Parallel()
	const callers = 3000
	rdb, hook := dialRedis(t, testenv.Redis(t).Addr()), &gateHook{small: make(chan struct{}), full: make(chan struct{})}
	rdb.AddHook(hook)
	d, err := redislock.New(rdb).Open(driver.Options{Logger: slog.New(slog.DiscardHandler)})
	check(t, err)
	defer func() { check(t, d.Close()) }()
	redislock.NeverInline(d)
	var failed atomic.Int64
	var wg sync.WaitGroup
	for i := range callers {
		wg.Go(func() {
			if _, err := d.Acquire(t.Context(), driver.Request{Ref: driver.Ref{Key: fmt.Sprint("k", i), ID: claimID(i), TTL: time.Minute}}); err != nil {
				failed.Add(1)
			}
		})
	}
	testenv.Eventually(t, time.Minute, "all wait", func() bool { return redislock.Pending(d) > callers/2 })
	close(hook.small)
	testenv.Eventually(t, time.Minute, "only full batches are in flight", func() bool { return redislock.InFlight(d) == int(hook.fullNow.Load()) })
	if n := hook.fullNow.Load(); n != 2 {
		t.Errorf("%d full batches are in flight", n)
	}
	testenv.Eventually(t, time.Minute, "full batches were held for too long", func() bool { return hook.unanswered.Load() >= 256 })
	close(hook.full)
	wg.Wait()
	if n := failed.Load(); n != hook.unanswered.Load() {
		t.Errorf("%d calls failed, and %d were not answered", n, hook.unanswered.Load())
	}
}
