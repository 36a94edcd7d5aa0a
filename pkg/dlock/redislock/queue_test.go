package redislock_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ceyewan/genesis/internal/faultproxy"
	"github.com/ceyewan/genesis/internal/hazardtest"
	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
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
	t.Parallel()
	client := testenv.Redis(t).Client()
	defer func() { _ = client.Close() }()
	ctx, locks := context.Background(), newLocks(t, client, dlock.Config{DefaultTTL: 2 * time.Second})
	g := acquire(t, locks, "k", dlock.WithTTL(time.Minute))
	const heartbeat = 2 * time.Second
	seedWaiters(t, client, "k", 1, 1000, heartbeat, "dlock:nobody") // without subscribers and renewals
	got, delayed := make(chan error, 1), false
	go func() {
		live, err := locks.Acquire(ctx, "k")
		if err == nil {
			began := time.Now()
			err = live.Unlock(ctx)
			if delayed = hazardtest.GaveUp(t, err, began); delayed { // it goes on in the background
				err = nil
			}
		}
		got <- err
	}()
	testenv.Eventually(t, time.Minute, "the living one waits too", func() bool {
		last := client.ZRange(ctx, queueOf("k"), -1, -1).Val()
		return len(last) == 1 && last[0] > claimID(1000) // its ID is random
	})
	start := time.Now()
	unlock(t, g)
	if err := <-got; err != nil {
		t.Fatal(err)
	}
	if took := time.Since(start); took > testenv.UnderStress(10*heartbeat, heartbeat*4/3+200*time.Millisecond) {
		t.Errorf("a thousand dead waiters cost %v", took)
	}
	left := func() int { return len(inspect(t, locks, "k")) }
	if delayed {
		testenv.Eventually(t, time.Minute, "the delayed release is carried out", func() bool { return left() == 0 })
	} else if n := left(); n != 0 {
		t.Errorf("left behind: %d claims", n)
	}
}

// A queue that is never empty, and whose waiters are served before they would renew, does not
// expire: newcomers extend it.
func TestABusyQueueIsKept(t *testing.T) {
	t.Parallel()
	server := testenv.Redis(t)
	client, d := dialRedis(t, server.Addr()), openDriver(t, server.Addr())
	submitClaim(t, d, "k", 1, time.Hour, driver.Held)     // for longer than the test takes
	submitClaim(t, d, "k", 2, time.Minute, driver.Queued) // and stays
	const passed = 30 * time.Second
	left := func() time.Duration {
		return min(client.PTTL(t.Context(), queueOf("k")).Val(), client.PTTL(t.Context(), waitersOf("k")).Val())
	}
	age := func() {
		for _, key := range []string{queueOf("k"), waitersOf("k")} {
			check(t, client.PExpire(t.Context(), key, passed).Err())
		}
	}
	age()
	next := 2
	testenv.Eventually(t, 5*time.Minute, "a newcomer keeps the queue", func() bool { // in one second of sixteen
		if client.Time(t.Context()).Val().Unix()%16 != 0 {
			return left() > passed
		}
		next++
		submitClaim(t, d, "k", next, time.Minute, driver.Queued)
		releaseClaim(t, d, "k", next, time.Minute)
		if left() < passed/2 {
			age() // the machine was too busy in that second
		}
		return left() > passed
	})
}

// If a proxy refuses several keys at once, they are sent one by one.
func TestRenewalThroughAProxyThatSplits(t *testing.T) {
	t.Parallel()
	proxy := testenv.Proxy(t, testenv.Redis(t).Addr())
	var refused atomic.Int64
	proxy.Intercept(func(cmd []string) faultproxy.Action {
		if (cmd[0] == "EVALSHA" || cmd[0] == "EVAL") && len(cmd) > 5 && cmd[3] == "k0" && cmd[4] == "k1" {
			refused.Add(1)
			return faultproxy.ReplyError("CROSSSLOT Keys in request don't hash to the same slot")
		}
		return faultproxy.Forward
	})
	d, refs := openDriver(t, proxy.Addr()), make([]driver.Ref, 5)
	for i := range refs {
		refs[i] = driver.Ref{Key: fmt.Sprintf("k%d", i), ID: claimID(i), TTL: time.Minute}
		submitClaim(t, d, refs[i].Key, i, time.Minute, driver.Held)
	}
	states, err := answered(t, func() ([]driver.State, error) { return d.Renew(t.Context(), refs) })
	check(t, err)
	for i, st := range states {
		if st.Phase != driver.Held {
			t.Errorf("claim %d is %v", i, st.Phase)
		}
	}
	if refused.Load() == 0 {
		t.Error("nothing was refused")
	}
}
