package redislock_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ceyewan/genesis/internal/faultproxy"
	"github.com/ceyewan/genesis/internal/hazardtest"
	"github.com/ceyewan/genesis/internal/servers"
	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/redislock"
)

// Two names that differ only in their braces share no key.
func TestNamesWithAndWithoutBraces(t *testing.T) {
	t.Parallel()
	hazardtest.Within(t, place, namesWithAndWithoutBraces)
}

func namesWithAndWithoutBraces(t testing.TB) {
	t.Helper()
	s := testenv.Redis(t)
	a, b := openDriver(t, s.Addr()), openDriver(t, s.Addr())
	const ttl = 30 * time.Second // of a waiter, the heartbeat counts
	submitClaim(t, a, "x", 1, ttl, driver.Held)
	submitClaim(t, a, "{x}", 2, ttl, driver.Held)
	submitClaim(t, b, "x", 3, ttl, driver.Queued)
	releaseClaim(t, a, "{x}", 2, ttl)
	if id := holderID(t, dialRedis(t, s.Addr()), "{x}"); id != "" {
		t.Errorf("{x} was given to a waiter of x")
	}
	if st := renewClaim(t, b, "x", 3, ttl); st.Phase != driver.Queued {
		t.Errorf("the waiter of x is %v", st.Phase)
	}
}

// A key that is locked throughout is listed, whatever is unlocked between two pages.
func TestListWhileKeysAreUnlocked(t *testing.T) {
	t.Parallel()
	s := testenv.Redis(t)
	d := openDriver(t, s.Addr())
	admin, ok := d.(driver.Admin)
	if !ok {
		t.Fatal("no Admin")
	}
	const n = 300
	name := func(i int) string { return fmt.Sprintf("k%03d", i) }
	number := map[string]int{}
	for i := range n {
		number[name(i)] = i + 1
		submitClaim(t, d, name(i), i+1, time.Minute, driver.Held)
	}
	seen := map[string]bool{}
	for cursor, first := "", true; first || cursor != ""; first = false {
		keys, next, err := admin.List(t.Context(), "k", cursor, 10)
		check(t, err)
		if len(keys) > 10 {
			t.Fatalf("%d keys, want at most 10", len(keys))
		}
		for _, k := range keys {
			if !seen[k] {
				releaseClaim(t, d, k, number[k], time.Minute)
			}
			seen[k] = true
		}
		cursor = next
	}
	if len(seen) != n {
		t.Errorf("%d of %d keys were listed, each locked until it was", len(seen), n)
	}
}

// A renewal that is answered after its claim was released does not put it back into the table of
// waiting claims.
func TestReleasedClaimsAreForgotten(t *testing.T) {
	t.Parallel()
	s := testenv.Redis(t)
	d, holder := openDriver(t, s.Addr()), openDriver(t, s.Addr())
	submitClaim(t, holder, "k", 1, time.Minute, driver.Held)
	const ttl = 3 * time.Second
	rounds := testenv.UnderStress(100, 400)
	for i := range rounds {
		id := i + 10
		submitClaim(t, d, "k", id, ttl, driver.Queued)
		var wg sync.WaitGroup
		wg.Go(func() {
			_, _ = d.Renew(context.Background(), []driver.Ref{{Key: "k", ID: claimID(id), TTL: ttl}})
		})
		wg.Go(func() { releaseClaim(t, d, "k", id, ttl) })
		wg.Wait()
	}
	if n := redislock.Waiting(d); n > 0 {
		t.Errorf("%d of %d released claims are remembered", n, rounds)
	}
}

// WAIT with 0 would wait forever.
func TestMinReplicasBelowAMillisecond(t *testing.T) {
	t.Parallel()
	s := testenv.Redis(t)
	d := openDriver(t, s.Addr(), redislock.WithMinReplicas(1, 500*time.Microsecond))
	missesReplicas(t, func(trial int) error {
		_, err := d.Acquire(t.Context(), driver.Request{Ref: driver.Ref{Key: "k", ID: claimID(trial), TTL: 10 * time.Second}})
		return err
	})
}

// A claim that has too few replicas and cannot be taken back at once is cleaned up.
func TestMinReplicasTakesBackLater(t *testing.T) {
	t.Parallel()
	s := testenv.Redis(t)
	p := testenv.Proxy(t, s.Addr())
	c := locksOn(t, redislock.New(dialRedis(t, p.Addr()), redislock.WithMinReplicas(1, 20*time.Millisecond)), dlock.Config{})
	_, _ = c.TryAcquire(t.Context(), "warm") // the server knows the scripts from here on
	var swallowed atomic.Bool
	releases := redislock.Scripts("release")
	p.Intercept(func(cmd []string) faultproxy.Action {
		if len(cmd) > 1 && strings.EqualFold(cmd[0], "evalsha") && !swallowed.Load() {
			for hash := range releases {
				if cmd[1] == hash {
					swallowed.Store(true)
					return faultproxy.Swallow
				}
			}
		}
		return faultproxy.Forward
	})
	_, err := c.TryAcquire(t.Context(), "k", dlock.WithTTL(time.Hour))
	if !swallowed.Load() || err == nil {
		t.Fatalf("%v, swallowed %v: the test shows nothing", err, swallowed.Load())
	}
	direct := dialRedis(t, s.Addr())
	testenv.Eventually(t, 20*time.Second, "the claim is taken back", func() bool { return direct.Exists(t.Context(), "k").Val() == 0 })
}

// Held locks whose slot moves are renewed one by one while only some of them have moved.
func TestRenewalInASlotThatMoves(t *testing.T) {
	t.Parallel()
	cl := testenv.Cluster(t)
	tolerateStalls(t, cl)
	rdb := redis.NewClusterClient(&redis.ClusterOptions{Addrs: cl.Addrs(), ContextTimeoutEnabled: true})
	t.Cleanup(func() { _ = rdb.Close() })
	const ttl = 30 * time.Second
	c := locksOn(t, redislock.New(rdb), dlock.Config{DefaultTTL: ttl, RenewInterval: time.Second})
	var guards []*dlock.Guard
	for _, key := range []string{"a{t}", "b{t}"} {
		guards = append(guards, acquire(t, c, key, dlock.WithTTL(ttl)))
	}
	for _, key := range []string{"c{t}", "d{t}"} {
		guards = append(guards, acquire(t, c, key, dlock.WithTTL(ttl), dlock.WithShared()))
	}
	ctx := t.Context()
	slot, err := cl.Slot(ctx, "{t}")
	check(t, err)
	from, err := cl.Owner(ctx, slot)
	check(t, err)
	to := cl.Nodes()[slices.IndexFunc(cl.Nodes(), func(n *servers.Redis) bool { return n != from })]
	src, dst := from.Client(), to.Client()
	t.Cleanup(func() { _, _ = src.Close(), dst.Close() })
	srcID, err := src.Do(ctx, "CLUSTER", "MYID").Text()
	check(t, err)
	dstID, err := dst.Do(ctx, "CLUSTER", "MYID").Text()
	check(t, err)
	check(t, dst.Do(ctx, "CLUSTER", "SETSLOT", slot, "IMPORTING", srcID).Err())
	check(t, src.Do(ctx, "CLUSTER", "SETSLOT", slot, "MIGRATING", dstID).Err())
	host, port, _ := strings.Cut(to.Addr(), ":")
	holders := slices.DeleteFunc(src.Keys(ctx, "c{t}?*").Val(), func(k string) bool { return !strings.HasSuffix(k, "\x01j") })
	if len(holders) != 1 {
		t.Fatalf("the readers are in %q", holders)
	}
	check(t, src.Do(ctx, "MIGRATE", host, port, "", 0, 5000, "KEYS", "a{t}", "c{t}", holders[0]).Err())
	awaitConfirmed(t, 3, guards...)
}

// Look does not read the queue.
func TestLookDoesNotReadTheQueue(t *testing.T) {
	t.Parallel()
	s := testenv.Redis(t)
	d := openDriver(t, s.Addr())
	submitClaim(t, d, "k", 999999, time.Hour, driver.Held)
	direct := dialRedis(t, s.Addr())
	seedWaiters(t, direct, "k", 1, 2000, time.Hour, "dlock:0123456789abcdef")
	c := locksAt(t, s.Addr())
	check(t, direct.ConfigResetStat(t.Context()).Err())
	var e *dlock.Error
	testenv.Eventually(t, time.Minute, "the holder is named", func() bool { // which it is if it is found in 250 ms
		_, err := c.TryAcquire(t.Context(), "k")
		return errors.As(err, &e) && e.Holder != nil
	})
	if e.Waiters != 2000 {
		t.Errorf("%v", e)
	}
	if stats := direct.Info(t.Context(), "commandstats").Val(); strings.Contains(stats, "cmdstat_hmget") {
		t.Errorf("the queue was read:\n%s", stats)
	}
	looker, ok := d.(driver.HolderFinder)
	if !ok {
		t.Fatal("no HolderFinder")
	}
	look := func(key, id string) (n int, err error) {
		return answered(t, func() (int, error) { _, n, err := looker.Look(t.Context(), key, id); return n, err })
	}
	n, err := look("k", claimID(1))
	if err != nil || n != 1999 {
		t.Errorf("%d wait, %v; one of 2000 does not count", n, err)
	}
	n, err = look("free", "")
	if err != nil || n != 0 {
		t.Errorf("a free key: %d wait, %v", n, err)
	}
}

// A wait for replicas that is longer than the call ends in time for its answer. The test calls the driver directly: an attempt of a
// Client ends after two seconds, which leaves too little on a busy machine.
func TestMinReplicasWaitEndsWithTheCall(t *testing.T) {
	t.Parallel()
	s := testenv.Redis(t)
	for i, within := range []time.Duration{10 * time.Second, 24 * time.Hour} {
		t.Run(fmt.Sprint(within), func(t *testing.T) {
			t.Parallel()
			d, err := redislock.New(dialRedis(t, s.Addr()), redislock.WithMinReplicas(1, within)).Open(driver.Options{Logger: slog.New(slog.DiscardHandler)})
			check(t, err)
			defer func() { _ = d.Close() }()
			var key string
			missesReplicas(t, func(trial int) error {
				ctx, cancel := context.WithTimeout(t.Context(), 8*time.Second) // of which two are for the withdrawal
				defer cancel()
				key = fmt.Sprint(t.Name(), trial)
				_, err := d.Acquire(ctx, driver.Request{Ref: driver.Ref{Key: key, ID: claimID(i), TTL: time.Minute}})
				return err
			})
			if n := dialRedis(t, s.Addr()).Exists(t.Context(), key).Val(); n != 0 {
				t.Error("the claim was not withdrawn")
			}
		})
	}
}
