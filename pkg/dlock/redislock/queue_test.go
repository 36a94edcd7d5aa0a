package redislock_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ceyewan/genesis/internal/faultproxy"
	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/internal/sharedtimeout"
	"github.com/ceyewan/genesis/pkg/dlock/redislock"
)

func newLocks(t *testing.T, client redis.UniversalClient, cfg dlock.Config) *dlock.Client {
	t.Helper()
	c, err := dlock.New(&cfg, dlock.WithBackend(redislock.New(client)), dlock.WithAdmin())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// A thousand dead waiters ahead delay the next living one by one heartbeat in total.
func TestThousandDeadWaiters(t *testing.T) {
	client := testenv.Redis(t).Client()
	defer func() { _ = client.Close() }()
	ctx, locks := context.Background(), newLocks(t, client, dlock.Config{DefaultTTL: 2 * time.Second})
	g, err := locks.Acquire(ctx, "k")
	if err != nil {
		t.Fatal(err)
	}
	ghosts, err := redislock.New(client).Open(driver.Options{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	redislock.NeverInline(ghosts)
	for i := range 1000 {
		r := driver.Ref{Key: "k", ID: fmt.Sprintf("%032x", i), TTL: 2 * time.Second}
		if st, err := ghosts.Acquire(ctx, driver.Request{Ref: r, Wait: true}); err != nil || st.Phase != driver.Queued {
			t.Fatalf("ghost %d: %v, %v", i, st.Phase, err)
		}
	}
	if err := ghosts.Close(); err != nil { // there are no subscribers and no renewals any more
		t.Fatal(err)
	}
	got := make(chan error, 1)
	go func() {
		live, err := locks.Acquire(ctx, "k")
		if err == nil {
			err = live.Unlock(ctx)
		}
		got <- err
	}()
	admin, err := locks.Admin()
	if err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, time.Minute, "the living one waits too", func() bool {
		n, err := client.ZCard(ctx, "{k}\x01y").Result()
		return err == nil && n >= 1001
	})
	start := time.Now()
	if err := g.Unlock(ctx); err != nil {
		t.Fatal(err)
	}
	if err := <-got; err != nil {
		t.Fatal(err)
	}
	const heartbeat = 2 * time.Second
	if took := time.Since(start); took > testenv.UnderStress(10*heartbeat, heartbeat*4/3+200*time.Millisecond) {
		t.Errorf("a thousand dead waiters cost %v", took)
	}
	if claims, err := admin.Inspect(ctx, "k"); err != nil || len(claims) != 0 {
		t.Errorf("left behind: %d claims, %v", len(claims), err)
	}
}

// A queue that is never empty, and whose waiters are served before they would renew, does not
// expire: newcomers extend it.
func TestABusyQueueIsKept(t *testing.T) {
	t.Parallel()
	client := testenv.Redis(t).Client()
	defer func() { _ = client.Close() }()
	d, err := redislock.New(client).Open(driver.Options{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	redislock.NeverInline(d)
	defer func() { _ = d.Close() }()
	ctx, next := context.Background(), 0
	submit := func(want driver.Phase) driver.Ref {
		t.Helper()
		next++
		r := driver.Ref{Key: "k", ID: fmt.Sprintf("%032x", next), TTL: time.Minute}
		st, err := d.Acquire(ctx, driver.Request{Ref: r, Wait: true})
		for errors.Is(err, sharedtimeout.ErrAttemptTimeout) { // a busy machine ended the attempt
			st, err = d.Acquire(ctx, driver.Request{Ref: r, Wait: true})
		}
		if err != nil || st.Phase != want {
			t.Fatalf("%v, %v", st.Phase, err)
		}
		return r
	}
	submit(driver.Held)
	submit(driver.Queued) // and stays
	const passed = 30 * time.Second
	left := func() time.Duration {
		return min(client.PTTL(ctx, "{k}\x01y").Val(), client.PTTL(ctx, "{k}\x01r").Val())
	}
	age := func() {
		for _, key := range []string{"{k}\x01y", "{k}\x01r"} {
			if err := client.PExpire(ctx, key, passed).Err(); err != nil {
				t.Fatal(err)
			}
		}
	}
	age()
	testenv.Eventually(t, 5*time.Minute, "a newcomer keeps the queue", func() bool { // in one second of sixteen
		submit(driver.Queued)
		releaseClaim(t, d, "k", next, time.Minute) // again if a busy machine ended the attempt
		if left() < passed/2 {
			age() // the machine was too busy in that second
		}
		return left() > passed
	})
}

// If a proxy refuses several keys at once, they are sent one by one.
func TestRenewalThroughAProxyThatSplits(t *testing.T) {
	proxy := testenv.Proxy(t, testenv.Redis(t).Addr())
	client := redis.NewClient(&redis.Options{Addr: proxy.Addr(), ContextTimeoutEnabled: true})
	defer func() { _ = client.Close() }()
	var refused atomic.Int64
	proxy.Intercept(func(cmd []string) faultproxy.Action {
		if (cmd[0] == "EVALSHA" || cmd[0] == "EVAL") && len(cmd) > 5 && cmd[3] == "k0" && cmd[4] == "k1" {
			refused.Add(1)
			return faultproxy.ReplyError("CROSSSLOT Keys in request don't hash to the same slot")
		}
		return faultproxy.Forward
	})
	d, err := redislock.New(client).Open(driver.Options{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	redislock.NeverInline(d)
	defer func() { _ = d.Close() }()
	ctx, refs := context.Background(), make([]driver.Ref, 5)
	for i := range refs {
		refs[i] = driver.Ref{Key: fmt.Sprintf("k%d", i), ID: fmt.Sprintf("%032x", i), TTL: 10 * time.Second}
		if st, err := d.Acquire(ctx, driver.Request{Ref: refs[i]}); err != nil || st.Phase != driver.Held {
			t.Fatalf("%v, %v", st.Phase, err)
		}
	}
	states, err := d.Renew(ctx, refs)
	if err != nil {
		t.Fatal(err)
	}
	for i, st := range states {
		if st.Phase != driver.Held {
			t.Errorf("claim %d is %v", i, st.Phase)
		}
	}
	if refused.Load() == 0 {
		t.Error("nothing was refused")
	}
}
