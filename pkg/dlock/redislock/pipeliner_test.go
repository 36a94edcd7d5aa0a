package redislock_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ceyewan/genesis/internal/servers"
	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock"
)

// A call that can be cancelled is made in haste where the server has been quick. These
// tests make it so first. On a busy machine that may fail, so they go on until it was so
// often enough.
func makeQuick(t *testing.T, ctx context.Context, c *dlock.Client) { //nolint:revive // the test comes first everywhere here
	t.Helper()
	for range 16 {
		if err := c.Lock(ctx, "warm"); err != nil {
			t.Fatal(err)
		}
		if err := c.Unlock(ctx, "warm"); err != nil {
			t.Fatal(err)
		}
	}
}

// untilInline calls round until it has reported haste often enough.
func untilInline(t *testing.T, round func() bool) {
	t.Helper()
	end := time.Now().Add(time.Minute)
	for seen, n := 0, testenv.UnderStress(3, 50); seen < n; {
		if round() {
			seen++
		} else if time.Now().After(end) {
			t.Fatalf("only %d of %d calls were made in haste", seen, n)
		}
	}
}

// A call that was given up early is made again, and its caller does not notice: not one
// that does not wait either. What was given up may arrive after the release, and must find
// its ID barred.
func TestHastyAcquireIsMadeAgain(t *testing.T) {
	t.Parallel()
	server := testenv.Redis(t)
	proxy, direct := testenv.Proxy(t, server.Addr()), directTo(t, server)
	c := clientAt(t, proxy.Addr(), dlock.Config{DefaultTTL: 20 * time.Second})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	untilInline(t, func() bool {
		proxy.Heal()
		makeQuick(t, ctx, c)
		direct.FlushDB(t.Context())
		var calls atomic.Int64
		proxy.DeliverAfterClose(true)
		proxy.Intercept(func(cmd []string) servers.Action {
			if kindOf(cmd) == acquiring && cmd[3] != "warm" && calls.Add(1) == 1 {
				elapse(200 * time.Millisecond)
			}
			return servers.Forward
		})
		if ok, err := c.TryLock(ctx, "k"); !ok || err != nil {
			t.Fatalf("TryLock: %v, %v", ok, err)
		}
		if err := c.Unlock(ctx, "k"); err != nil {
			t.Fatal(err)
		}
		if calls.Load() == 1 {
			return false
		}
		elapse(300 * time.Millisecond) // until the first has arrived
		bars := 0
		for _, key := range direct.Keys(t.Context(), "*").Val() {
			if key == "k" {
				t.Error("a claim that arrived late was stored")
			}
			if strings.Contains(key, "\x01b") {
				bars++
			}
		}
		if bars != 1 {
			t.Errorf("%d IDs are barred, want 1", bars)
		}
		return true
	})
}

// A release that was given up early was carried out nevertheless. The one that follows
// finds nothing, and that is no loss.
func TestHastyReleaseIsMadeAgain(t *testing.T) {
	t.Parallel()
	server := testenv.Redis(t)
	proxy, direct := testenv.Proxy(t, server.Addr()), directTo(t, server)
	c := clientAt(t, proxy.Addr(), dlock.Config{DefaultTTL: 20 * time.Second})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	untilInline(t, func() bool {
		proxy.Heal()
		makeQuick(t, ctx, c)
		if err := c.Lock(ctx, "k"); err != nil {
			t.Fatal(err)
		}
		var calls atomic.Int64
		proxy.Intercept(func(cmd []string) servers.Action {
			if kindOf(cmd) != releasing || cmd[3] == "warm" || calls.Add(1) > 1 {
				return servers.Forward
			}
			words := make([]any, len(cmd))
			for i := range cmd {
				words[i] = cmd[i]
			}
			if err := direct.Do(t.Context(), words...).Err(); err != nil {
				t.Error(err)
			}
			return servers.Swallow
		})
		if err := c.Unlock(ctx, "k"); err != nil {
			t.Fatal(err)
		}
		return calls.Load() > 1
	})
}

// An inline call is not longer than its attempt timeout: a call on a dead link ends
// soon after its context, whether or not the client honors deadlines.
func TestHastyCallEndsWithItsContext(t *testing.T) {
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

// dies makes a call on a link that has just died, and cancels it.
func dies(t *testing.T, proxy *servers.Proxy, cancel context.CancelFunc, call func() error, errs ...error) {
	t.Helper()
	proxy.BlackHole(true)
	defer proxy.Heal()
	time.AfterFunc(5*time.Millisecond, cancel)
	started := time.Now()
	expect(t, call(), errs...)
	if over := time.Since(started) - 5*time.Millisecond; over > testenv.UnderStress(10*time.Second, 100*time.Millisecond) {
		t.Errorf("the call outlived its context by %v", over.Round(time.Millisecond))
	}
}
