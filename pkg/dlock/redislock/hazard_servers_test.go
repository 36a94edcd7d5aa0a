package redislock_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ceyewan/genesis/internal/hazardtest"
	"github.com/ceyewan/genesis/internal/servers"
	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/redislock"
)

// A failover to a replica that did not receive the lock gives it to a second holder. Only the fence
// stops the first.
func TestFailoverNeedsTheFence(t *testing.T) {
	t.Parallel()
	for run := range testenv.UnderStress(2, 50) {
		master, replica := startPair(t)
		a := locksAt(t, master.Addr())
		for range 3 * run { // a lock that is new, and one whose fence the replica knows
			unlock(t, acquire(t, a, "k"))
		}
		awaitReplica(t, master)
		isolate(t, master, replica)
		first := acquire(t, a, "k", dlock.WithTTL(time.Minute))
		check(t, master.Kill())
		check(t, replica.Resume())
		replicate(t, replica, nil)
		second := acquire(t, locksAt(t, replica.Addr()), "k")
		alive(t, first)
		alive(t, second) // both hold: Redis cannot do better without replicas that confirm
		var store fencedStore
		check(t, store.write(second.Token()))
		if err := store.write(first.Token()); err == nil {
			t.Errorf("a stale write was accepted: token %d of the first holder is not below %d of the second", first.Token(), second.Token())
		} else if second.Token() <= first.Token() {
			t.Errorf("run %d: token %d after %d: the store cannot tell the holders apart", run, second.Token(), first.Token())
		}
		check(t, master.Restart(t.Context(), false)) // so that closing need not wait for it
	}
}

// With replicas that must confirm, no claim holds a lock that a replica did not receive.
func TestMinReplicasHaveTheGrant(t *testing.T) {
	t.Parallel()
	for range testenv.UnderStress(2, 50) {
		master, replica := startPair(t)
		client := dialRedis(t, master.Addr())
		a := locksOn(t, redislock.New(client, redislock.WithMinReplicas(1, 100*time.Millisecond)), dlock.Config{})
		unlock(t, acquire(t, a, "k")) // works while the replica does
		isolate(t, master, replica)
		key := ""
		missesReplicas(t, func(trial int) error {
			key = fmt.Sprint("k", trial)
			_, err := a.TryAcquire(t.Context(), key, dlock.WithTTL(time.Minute))
			return err
		})
		if n := client.Exists(t.Context(), key).Val(); n != 0 {
			t.Error("the claim that was refused is still stored")
		}
		short, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		_, err := a.Acquire(short, key, dlock.WithTTL(time.Minute))
		cancel()
		wantError(t, err, context.DeadlineExceeded)
		check(t, master.Kill())
		check(t, replica.Resume())
		replicate(t, replica, nil)
		alive(t, acquire(t, locksAt(t, replica.Addr()), key)) // one holder, since the first was refused
		check(t, master.Restart(t.Context(), false))
	}
}

// A holder whose renewals are no longer confirmed is lost before the replica, which is promoted,
// grants the lock to another.
func TestMinReplicasHaveTheRenewal(t *testing.T) {
	t.Parallel()
	ttl, metronome := testenv.UnderStress(6*time.Second, 1500*time.Millisecond), testenv.StartMetronome(t)
	const beat = 20 * time.Millisecond // in which the metronome notes a stall
	for range testenv.UnderStress(1, 50) {
		master, replica := startPair(t)
		a := locksOn(t, redislock.New(dialRedis(t, master.Addr()), redislock.WithMinReplicas(1, 100*time.Millisecond)), dlock.Config{})
		first := acquire(t, a, "k", dlock.WithTTL(ttl))
		lost := watchLoss(first)
		isolate(t, master, replica)
		m := dialRedis(t, master.Addr())
		paused, ends, isRenewed := time.Now(), time.Time{}, false
		testenv.Eventually(t, time.Minute, "a renewal has reached the master alone", func() bool {
			asked, left := time.Now(), m.PTTL(t.Context(), "k").Val()
			if ends.IsZero() {
				ends = time.Now().Add(left)
			}
			isRenewed = isRenewed || asked.Add(left).After(ends.Add(ttl/20))
			return isRenewed && time.Since(paused) > ttl/2
		})
		check(t, master.Kill())
		check(t, replica.Resume())
		replicate(t, replica, nil)
		b := locksAt(t, replica.Addr())
		second := acquire(t, b, "k")
		got := time.Now()
		at := lost.when(t)
		elapse(beat)
		if late := at.Sub(got); late > metronome.LostBetween(got.Add(-beat), at.Add(beat)) {
			t.Errorf("two hold for %v", late)
		}
		if second.Token() <= first.Token() {
			t.Errorf("token %d after %d", second.Token(), first.Token())
		}
		check(t, master.Restart(t.Context(), false))
	}
}

// With sentinels: a key that a replica had to confirm has no second holder; a key without that
// condition has one.
func TestMinReplicasWithSentinel(t *testing.T) {
	t.Parallel()
	for range testenv.UnderStress(1, 50) {
		s := testenv.Sentinel(t)
		keepMaster(t, s)
		open := func(opts ...redislock.Option) *dlock.Client {
			client := redis.NewFailoverClient(&redis.FailoverOptions{
				MasterName: servers.MasterName, SentinelAddrs: s.SentinelAddrs(), ContextTimeoutEnabled: true,
			})
			t.Cleanup(func() { _ = client.Close() })
			return locksOn(t, redislock.New(client, opts...), dlock.Config{})
		}
		safe, plain, other := open(redislock.WithMinReplicas(1, 100*time.Millisecond)), open(), open()
		unlock(t, acquire(t, safe, "warm"))
		unlock(t, acquire(t, plain, "plain", dlock.WithTTL(10*time.Second))) // a replica may not hear of the release
		replicas, err := s.Replicas(t.Context())
		check(t, err)
		master, err := s.Master(t.Context())
		check(t, err)
		isolate(t, master, replicas...)
		refused := ""
		missesReplicas(t, func(trial int) error {
			refused = fmt.Sprint("safe", trial)
			_, err := safe.TryAcquire(t.Context(), refused, dlock.WithTTL(time.Minute))
			return err
		})
		first := acquire(t, plain, "plain", dlock.WithTTL(time.Minute))
		replaceDeadMaster(t, s)
		old, err := s.KillMaster(t.Context())
		check(t, err)
		for _, r := range replicas {
			check(t, r.Resume())
		}
		ctx, cancel := context.WithTimeout(t.Context(), 40*time.Second)
		defer cancel()
		_, err = s.AwaitFailover(ctx, old)
		check(t, err)
		alive(t, acquire(t, other, refused))
		second := acquire(t, other, "plain")
		alive(t, first) // the double hold
		if second.Token() <= first.Token() {
			t.Errorf("token %d after %d", second.Token(), first.Token())
		}
	}
}

// A server restarts empty: the holder finds out at its next renewal, and its token is below that of
// the next holder.
func TestEmptyRestartIsALoss(t *testing.T) {
	t.Parallel()
	ttl := testenv.UnderStress(30*time.Second, 3*time.Second) // its end differs clearly from the next renewal
	for range testenv.UnderStress(1, 50) {
		server := testenv.Redis(t)
		first := acquire(t, locksAt(t, server.Addr()), "k", dlock.WithTTL(ttl))
		check(t, server.Restart(t.Context(), false))
		back := time.Now()
		second := acquire(t, locksAt(t, server.Addr()), "k") // the lock was lost with the server
		wantLost(t, first, back, ttl/3+slack)
		wantError(t, first.Unlock(t.Context()), dlock.ErrOwnershipLost)
		if second.Token() <= first.Token() {
			t.Errorf("token %d after %d", second.Token(), first.Token())
		}
		unlock(t, second)
	}
}

// With an append-only file that is synced first, locks outlive the server.
func TestLocksSurviveARestart(t *testing.T) {
	t.Parallel()
	ttl := testenv.UnderStress(30*time.Second, 3*time.Second)
	server := testenv.Redis(t, "--appendonly", "yes", "--appendfsync", "always")
	a, b := renewingLocksAt(t, server.Addr(), time.Second), locksAt(t, server.Addr())
	first := acquire(t, a, "k", dlock.WithTTL(ttl))
	waiter := startWait(t, b, "k", dlock.WithTTL(ttl))
	pid := server.Pid()
	check(t, server.Kill())
	check(t, server.Restart(t.Context(), true))
	if server.Pid() == pid {
		t.Fatal("the server was not restarted")
	}
	awaitRenewals(t, dialRedis(t, server.Addr()), 1, first)
	alive(t, first)
	unlock(t, first)
	unlock(t, granted(t, waiter, ttl/3+slack).guard) // it is subscribed again, or it asks
}

// awaitRenewals waits until the lease of each of these locks has become longer so many times.
func awaitRenewals(t *testing.T, direct *redis.Client, times int, guards ...*dlock.Guard) {
	t.Helper()
	awaitLonger(t, func(g *dlock.Guard) time.Duration { return direct.PTTL(t.Context(), g.Key()).Val() }, times, guards...)
}

// awaitConfirmed is the same as awaitRenewals for locks on any node: their holder sees it.
func awaitConfirmed(t *testing.T, times int, guards ...*dlock.Guard) {
	t.Helper()
	awaitLonger(t, (*dlock.Guard).Remaining, times, guards...)
}

func awaitLonger(t *testing.T, lease func(*dlock.Guard) time.Duration, times int, guards ...*dlock.Guard) {
	t.Helper()
	last, seen := make([]time.Duration, len(guards)), make([]int, len(guards))
	testenv.Eventually(t, time.Minute, "all are renewed", func() bool {
		for i, g := range guards {
			left := lease(g)
			if last[i] > 0 && left > last[i]+50*time.Millisecond {
				seen[i]++
			}
			last[i] = left
		}
		return slices.Min(seen) >= times
	})
}

// A server that evicts keys takes the lock away; the holder finds out at its next renewal.
func TestEvictedKeyIsALoss(t *testing.T) {
	t.Parallel()
	ttl := testenv.UnderStress(30*time.Second, 6*time.Second) // its end differs clearly from the next renewal
	server := testenv.Redis(t, "--maxmemory", "4mb", "--maxmemory-policy", "volatile-lru")
	direct := dialRedis(t, server.Addr())
	for range testenv.UnderStress(1, 10) {
		c := warnedClient(t, server.Addr(), "eviction-policy")
		first := acquire(t, c, "k", dlock.WithTTL(ttl))
		findings, err := answered(t, func() ([]dlock.Finding, error) { return c.Check(t.Context()) })
		check(t, err)
		if !slices.ContainsFunc(findings, func(f dlock.Finding) bool { return f.Name == "eviction-policy" && f.Level == dlock.LevelUnsafe }) {
			t.Errorf("Check: %v", findings)
		}
		junk, n := strings.Repeat("x", 1000), 0
		testenv.Eventually(t, 30*time.Second, "the lock is evicted", func() bool {
			_, err := direct.Pipelined(t.Context(), func(p redis.Pipeliner) error {
				for range 200 {
					n++
					p.Set(t.Context(), fmt.Sprintf("cache:%d", n), junk, time.Hour)
				}
				return nil
			})
			check(t, err)
			return direct.Exists(t.Context(), "k").Val() == 0
		})
		gone := time.Now()
		if serverInfo(t, direct, "stats", "evicted_keys") == "0" {
			t.Fatal("nothing was evicted")
		}
		wantLost(t, first, gone, ttl/3+slack)
		wantError(t, first.Unlock(t.Context()), dlock.ErrOwnershipLost)
	}
}

// A server that is full stores nothing new, and the error says why; existing locks are renewed,
// released, waited for and granted to the next waiter.
func TestAtMaxmemoryHeldLocksWork(t *testing.T) {
	t.Parallel()
	hazardtest.UntilValid(t, lockAtMaxmemory)
}

// lockAtMaxmemory is a round of TestAtMaxmemoryHeldLocksWork. It is void if a lease or a place has ended because the machine
// stalled: the server is full, so that neither can be had again.
func lockAtMaxmemory(t *testing.T) (valid bool) {
	ttl := testenv.UnderStress(5*time.Second, 900*time.Millisecond)
	server := testenv.Redis(t, "--maxmemory-policy", "noeviction")
	direct := dialRedis(t, server.Addr())
	a, b := locksAt(t, server.Addr()), locksAt(t, server.Addr())
	metronome, heartbeat, began := testenv.StartMetronome(t), driver.Heartbeat(ttl), time.Now()
	first := hazardtest.Keep(t, acquire(t, a, "k", dlock.WithTTL(ttl)), ttl/3)
	waiter := startWait(t, b, "k", dlock.WithTTL(ttl))
	acquire(t, a, "readers", dlock.WithShared(), dlock.WithTTL(time.Minute))
	check(t, direct.ConfigSet(t.Context(), "maxmemory", "1").Err())
	full := time.Now()

	_, err := answered(t, func() (*dlock.Guard, error) { return a.TryAcquire(t.Context(), "other") })
	wantError(t, err, redislock.ErrOutOfMemory)
	_, err = answered(t, func() (bool, error) { return a.TryLock(t.Context(), "other") })
	wantError(t, err, redislock.ErrOutOfMemory)
	if errors.Is(err, dlock.ErrUnknownOutcome) {
		t.Errorf("nothing was stored, and that is certain: %v", err)
	}
	wantError(t, b.Lock(t.Context(), "readers", dlock.WithWait(2*time.Second)), redislock.ErrOutOfMemory) // it is not queued either
	if countErrors(t, direct, "OOM") == 0 {
		t.Fatal("the server was not out of memory")
	}
	<-time.After(testenv.UnderStress[time.Duration](2, 3) * ttl) // without renewals the leases would have run out
	if first.Lost(t) {
		return false
	}
	waited := time.Since(full)
	claims := inspect(t, b, "k")
	if len(claims) != 2 || claims[1].Age < waited {
		if !metronome.MayMiss(began, heartbeat, heartbeat/3) { // a third has passed before it is renewed
			t.Fatalf("the waiter has lost its place: %v", claims)
		}
		return false
	}
	unlock(t, first.Guard)
	second := hazardtest.Keep(t, granted(t, waiter, slack).guard, ttl/3)
	<-time.After(ttl)
	if second.Lost(t) {
		return false
	}
	unlock(t, second.Guard)

	// A claim that waits for memory gets the lock when there is some.
	pending := make(chan error, 1)
	go func() { pending <- a.Lock(t.Context(), "other") }()
	before := countErrors(t, direct, "OOM")
	testenv.Eventually(t, time.Minute, "the call tries", func() bool { return countErrors(t, direct, "OOM") > before })
	check(t, direct.ConfigSet(t.Context(), "maxmemory", "0").Err())
	select {
	case err := <-pending:
		check(t, err)
	case <-time.After(testenv.UnderStress(30*time.Second, 3*time.Second)):
		t.Fatal("the call did not notice")
	}
	return true
}

// A server that keeps forgetting the scripts causes no visible failure.
func TestFlushedScriptsAreLoadedAgain(t *testing.T) {
	t.Parallel()
	server := testenv.Redis(t)
	direct := dialRedis(t, server.Addr())
	ctx, cancel := context.WithTimeout(t.Context(), time.Duration(testenv.UnderStress(3, 60))*time.Second)
	defer cancel()
	longer, cancel := context.WithTimeout(t.Context(), time.Duration(testenv.UnderStress(3, 60)+15)*time.Second)
	defer cancel() // no call takes as long as that
	var wg sync.WaitGroup
	var flushes, handed atomic.Int64
	wg.Go(func() {
		tick := time.NewTicker(50 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				if direct.ScriptFlush(longer).Err() == nil {
					flushes.Add(1)
				}
			case <-ctx.Done():
				return
			}
		}
	})
	for i := range 6 {
		c := locksOn(t, redislock.New(dialRedis(t, server.Addr())), dlock.Config{RenewInterval: 300 * time.Millisecond})
		wg.Go(func() { // contended and short
			for ctx.Err() == nil {
				err := c.Do(longer, fmt.Sprintf("k%d", i%2), func(context.Context) error { return nil })
				if err != nil {
					t.Error(err)
					return
				}
				handed.Add(1)
			}
		})
		wg.Go(func() { // held over many renewals
			for ctx.Err() == nil {
				err := c.Do(longer, fmt.Sprintf("long%d", i), func(inner context.Context) error {
					g, _ := dlock.FromContext(inner)
					for last, n := g.Remaining(), 0; n < 5 && inner.Err() == nil; elapse(10 * time.Millisecond) {
						left := g.Remaining()
						if left > last {
							n++
						}
						last = left
					}
					return context.Cause(inner)
				}, dlock.WithTTL(testenv.UnderStress(20*time.Second, 900*time.Millisecond)))
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	if n := countErrors(t, direct, "NOSCRIPT"); flushes.Load() == 0 || n < int(flushes.Load())/2 {
		t.Errorf("%d flushes made %d calls fail: the test does not bite", flushes.Load(), n)
	}
	t.Logf("%d flushes, %d NOSCRIPT, %d short locks", flushes.Load(), countErrors(t, direct, "NOSCRIPT"), handed.Load())
}

// transientReplies are the errors that mean "not now".
var transientReplies = []string{
	"READONLY You can't write against a read only replica.",
	"LOADING Redis is loading the dataset in memory",
	"MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
	"CLUSTERDOWN The cluster is down",
	"ERR Script attempted to execute a write command while the cluster is down and readonly",
	"MOVED 3999 127.0.0.1:1",
	"ASK 3999 127.0.0.1:1",
	"TRYAGAIN Multiple keys request during rehashing of slot",
	"BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
	"NOREPLICAS Not enough good replicas to write.",
	"MISCONF Redis is configured to save RDB snapshots",
	"OOM command not allowed when used memory > 'maxmemory'.",
}

// Each of them, once, to each kind of call: no loss, no error where there is time to retry, the
// right error where there is not.
func TestErrorRepliesAreNoLoss(t *testing.T) {
	t.Parallel()
	ttl := testenv.UnderStress(30*time.Second, 600*time.Millisecond)
	server := testenv.Redis(t)
	other, direct := locksAt(t, server.Addr()), dialRedis(t, server.Addr())
	for _, reply := range transientReplies {
		word, _, _ := strings.Cut(reply, " ")
		t.Run(word, func(t *testing.T) {
			t.Parallel()
			proxy := testenv.Proxy(t, server.Addr())
			c := locksOn(t, redislock.New(dialRedis(t, proxy.Addr())), dlock.Config{DefaultTTL: ttl, RenewInterval: min(ttl/3, time.Second), RetryInterval: 20 * time.Millisecond})
			want := dlock.ErrNotReady
			if word == "OOM" {
				want = redislock.ErrOutOfMemory
			}
			happened := func(n *atomic.Int64) {
				t.Helper()
				if n.Load() != 1 {
					t.Fatal("the fault did not happen")
				}
			}

			var n *atomic.Int64
			key := "k" + word
			tried, err := answered(t, func() (*dlock.Guard, error) { // each time another lock: one without an answer may be stored
				key += "."
				n = answerOnce(t, proxy, "acquire", reply)
				return c.TryAcquire(t.Context(), key)
			})
			if word == "READONLY" { // by one connection of a pool: another is asked at once
				check(t, err)
				unlock(t, tried)
			} else {
				wantError(t, err, want)
			}
			if err != nil && driver.ClassOf(err) != driver.Transient || errors.Is(err, dlock.ErrUnknownOutcome) || errors.Is(err, dlock.ErrLockHeldByOther) {
				t.Errorf("the lock was not taken, and that is certain: %v", err)
			}
			happened(n)
			if claims := inspect(t, other, key); len(claims) != 0 {
				t.Errorf("claims %v", claims)
			}

			n = answerOnce(t, proxy, "acquire", reply)
			g := acquire(t, c, key)
			happened(n)

			n = answerOnce(t, proxy, "renew", reply)
			testenv.Eventually(t, time.Minute, "a renewal is refused", func() bool { return n.Load() == 1 })
			awaitRenewals(t, direct, 1, g)
			alive(t, g)
			if claims := inspect(t, other, key); len(claims) != 1 || claims[0].Token != g.Token() {
				t.Errorf("claims %v", claims)
			}

			n = answerOnce(t, proxy, "release", reply)
			unlock(t, g)
			happened(n)
			if claims := inspect(t, other, key); len(claims) != 0 {
				t.Errorf("claims %v", claims)
			}
		})
	}
}

// Errors that will not go away are returned at once.
func TestFatalRepliesAreReportedAtOnce(t *testing.T) {
	t.Parallel()
	server := testenv.Redis(t)
	proxy, metronome := testenv.Proxy(t, server.Addr()), testenv.StartMetronome(t)
	c := locksAt(t, proxy.Addr())
	for reply, want := range map[string]error{
		"NOPERM this user has no permissions to run the 'evalsha' command": dlock.ErrDenied,
		"NOAUTH Authentication required.":                                  dlock.ErrDenied,
		"WRONGPASS invalid username-password pair or user is disabled.":    dlock.ErrDenied,
		"WRONGTYPE Operation against a key holding the wrong kind":         redislock.ErrNotALock,
		"ERR something new": nil,
	} {
		var err error
		var n *atomic.Int64
		var took time.Duration
		for err == nil { // a call that the machine delays is made again, and then it is not refused
			n = answerOnce(t, proxy, "acquire", reply)
			began := time.Now()
			var g *dlock.Guard
			g, err = c.Acquire(t.Context(), "k")
			took = time.Since(began) - metronome.Lost(began)
			if err == nil {
				if !testenv.Late(t, began, oneAttempt) {
					t.Fatalf("%s: acquired %v", reply, g.Key())
				}
				unlock(t, g)
			}
		}
		if want != nil {
			wantError(t, err, want)
		}
		if n.Load() != 1 || driver.ClassOf(err) != driver.Fatal || took > testenv.UnderStress(10*time.Second, time.Second) {
			t.Errorf("%s: %v after %v without stalls, %d times", reply, err, took, n.Load())
		}
	}
}

// A master in use becomes a replica: holders follow to the new master within a renewal interval and
// lose nothing.
func TestHoldersFollowADemotion(t *testing.T) {
	t.Parallel()
	const ttl, interval = 30 * time.Second, 3 * time.Second // the lock outlives a slow failover, and is renewed soon after it
	s := testenv.Sentinel(t)
	keepMaster(t, s) // until a sentinel is told to replace it
	client := redis.NewFailoverClient(&redis.FailoverOptions{
		MasterName: servers.MasterName, SentinelAddrs: s.SentinelAddrs(), ContextTimeoutEnabled: true,
	})
	defer client.Close()
	c := locksOn(t, redislock.New(client), dlock.Config{RenewInterval: interval})
	for range testenv.UnderStress(1, 10) {
		g := acquire(t, c, "k", dlock.WithTTL(ttl))
		old, err := s.Master(t.Context())
		check(t, err)
		direct := dialRedis(t, old.Addr())
		testenv.Eventually(t, time.Minute, "the replicas have it", func() bool {
			return direct.Do(t.Context(), "WAIT", 2, 100).Val() == int64(2)
		})
		load, stop := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		var done atomic.Int64
		for i := range 3 {
			wg.Go(func() {
				for load.Err() == nil {
					err := c.Do(load, fmt.Sprintf("load%d", i), func(context.Context) error { done.Add(1); return nil }, dlock.WithTTL(2*time.Second)) // a release that the switch loses costs one TTL
					if err != nil && !errors.Is(err, dlock.ErrOwnershipLost) && load.Err() == nil {
						t.Error(err) // a hold that fell into the switch may be lost; nothing else may go wrong
					}
				}
			})
		}
		testenv.Eventually(t, time.Minute, "load", func() bool { return done.Load() > 10 })
		sentinel := redis.NewSentinelClient(&redis.Options{Addr: s.SentinelAddrs()[0]})
		var master *servers.Redis
		testenv.Eventually(t, 3*time.Minute, "a failover", func() bool { // on a slow machine sentinels give some up
			_ = sentinel.Failover(t.Context(), servers.MasterName).Err()
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			master, err = s.AwaitFailover(ctx, old)
			return err == nil
		})
		_ = sentinel.Close()
		now := dialRedis(t, master.Addr())
		last := now.PTTL(t.Context(), "k").Val()
		eventually(t, interval+slack, "the holder has followed", func() bool {
			left := now.PTTL(t.Context(), "k").Val()
			renewed := left > last+50*time.Millisecond
			last = left
			return renewed
		})
		before := done.Load()
		testenv.Eventually(t, time.Minute, "load on the new master", func() bool { return done.Load() > before+10 })
		stop()
		wg.Wait()
		testenv.Eventually(t, 20*time.Second, "the old master is a replica", func() bool {
			return serverInfo(t, direct, "replication", "role") == "slave"
		})
		alive(t, g)
		unlock(t, g)
	}
}

// A slot moves to another master while its locks are held, waited for and renewed.
func TestLocksFollowTheirSlot(t *testing.T) {
	t.Parallel()
	ttl := testenv.UnderStress(30*time.Second, 3*time.Second) // no stall ends it
	interval := testenv.UnderStress(time.Second, 500*time.Millisecond)
	cl := testenv.Cluster(t)
	tolerateStalls(t, cl)
	c := locksOn(t, redislock.New(clusterClient(t, cl)), dlock.Config{DefaultTTL: ttl, RenewInterval: interval})
	other := locksOn(t, redislock.New(clusterClient(t, cl)), dlock.Config{DefaultTTL: ttl, RenewInterval: interval})
	for round := range testenv.UnderStress(1, 20) {
		key := fmt.Sprintf("{tag}%d", round)
		slot, err := cl.Slot(t.Context(), key)
		check(t, err)
		from, err := cl.Owner(t.Context(), slot)
		check(t, err)
		masters, err := cl.Masters(t.Context())
		check(t, err)
		to := masters[0]
		if to == from {
			to = masters[1]
		}
		first := acquire(t, c, key)
		waiter := startWait(t, other, key)
		check(t, cl.BeginMigration(t.Context(), slot, from, to))
		check(t, cl.MoveKeys(t.Context(), from, to, key)) // the lock has moved, its queue has not
		half, cancel := context.WithTimeout(t.Context(), testenv.UnderStress(2*time.Second, 300*time.Millisecond))
		_, err = c.Acquire(half, key)
		cancel()
		wantError(t, err, context.DeadlineExceeded)
		if !strings.Contains(err.Error(), "TRYAGAIN") && !strings.Contains(err.Error(), "ASK") {
			t.Errorf("the slot was not half moved: %v", err)
		}
		check(t, cl.MoveSlotKeys(t.Context(), slot, from, to))
		check(t, cl.FinishMigration(t.Context(), slot, from, to))
		metronome, moved := testenv.StartMetronome(t), time.Now()
		awaitConfirmed(t, 2, first)
		if took := time.Since(moved) - metronome.Lost(moved); took > 2*interval+2*slack {
			t.Errorf("two renewals after the slot had moved took %v", took)
		}
		alive(t, first)
		unlock(t, first)
		second := granted(t, waiter, 2*time.Second+slack).guard
		if owner, err := cl.Owner(t.Context(), slot); err != nil || owner != to {
			t.Fatalf("the slot did not move: %v", err)
		}
		unlock(t, second)
	}
}

// The last reader releases a lock for which others wait, while its slot is moving. The server ends the script in the
// middle, because a key that has become empty may have moved. The release is repeated, at the latest after Unlock has
// returned, and the waiters get the lock.
func TestReaderReleasesInAMovingSlot(t *testing.T) {
	t.Parallel()
	cl := testenv.Cluster(t)
	tolerateStalls(t, cl)
	c := locksOn(t, redislock.New(clusterClient(t, cl)), dlock.Config{DefaultTTL: time.Minute})
	other := locksOn(t, redislock.New(clusterClient(t, cl)), dlock.Config{DefaultTTL: time.Minute})
	const key = "k"
	slot, err := cl.Slot(t.Context(), key)
	check(t, err)
	from, err := cl.Owner(t.Context(), slot)
	check(t, err)
	to := cl.Nodes()[0]
	if to == from {
		to = cl.Nodes()[1]
	}
	reader, last := acquire(t, c, key, dlock.WithShared()), acquire(t, other, key, dlock.WithShared())
	first, second := startWait(t, c, key), startWait(t, locksOn(t, redislock.New(clusterClient(t, cl)), dlock.Config{DefaultTTL: time.Minute}), key)
	check(t, cl.BeginMigration(t.Context(), slot, from, to))
	unlock(t, reader)
	released := make(chan error, 1)
	go func() { released <- last.Unlock(context.Background()) }()
	direct := dialRedis(t, from.Addr())
	testenv.Eventually(t, time.Minute, "the reader is removed", func() bool { return direct.Exists(t.Context(), holdersOf(key)).Val() == 0 })
	check(t, cl.MoveSlotKeys(t.Context(), slot, from, to))
	check(t, cl.FinishMigration(t.Context(), slot, from, to))
	if err := <-released; err != nil && !errors.Is(err, dlock.ErrUnknownOutcome) || err != nil && strings.Contains(err.Error(), "refused") {
		t.Errorf("the release ends with %v", err)
	}
	var next outcome
	select { // the slot may have moved for longer than a place is kept
	case next = <-first:
		first = second
	case next = <-second:
	}
	check(t, next.err)
	unlock(t, next.guard)
	unlock(t, granted(t, first, time.Minute).guard)
}

// awkwardNames returns names that have caused failures in practice, then random ones.
func awkwardNames(n int) []string {
	names := []string{"a", "{}", "}{", "a{b", "{{x}}", "{x}", "a{x}b", "{}{x}", "{x}{y}", "}", "{", "a}b", "}a{b}", "{}}", "{{}}", "a{}b", "foo{}{bar}", "foo{{bar}}zap", "foo{bar}{zap}"}
	rng := rand.New(rand.NewPCG(10, 10))
	alphabet := []string{"{", "}", "a", "b", ":", "*", "é", " "}
	for len(names) < n {
		var b strings.Builder
		for range 1 + rng.IntN(10) {
			b.WriteString(alphabet[rng.IntN(len(alphabet))])
		}
		names = append(names, b.String())
	}
	return names
}

// All keys of a lock share a cluster slot, or the name is refused; no call ever gets CROSSSLOT.
func TestSiblingsShareASlot(t *testing.T) {
	t.Parallel()
	cl := testenv.Cluster(t)
	node := dialRedis(t, cl.Nodes()[0].Addr())
	names := awkwardNames(testenv.UnderStress(4000, 20_000))
	placed := 0
	for len(names) > 0 {
		n := min(len(names), 500)
		batch := names[:n]
		names = names[n:]
		var expect [][]string
		pipe := node.Pipeline()
		for _, name := range batch {
			keys, ok := redislock.Keys("p:", name)
			if !ok {
				continue
			}
			expect = append(expect, keys)
			for _, k := range keys {
				pipe.ClusterKeySlot(t.Context(), k)
			}
		}
		slots, err := pipe.Exec(t.Context())
		check(t, err)
		for i, keys := range expect {
			placed++
			for j := range keys {
				if got, want := slots[i*len(keys)+j].(*redis.IntCmd).Val(), slots[i*len(keys)].(*redis.IntCmd).Val(); got != want {
					t.Fatalf("%q is in slot %d, %q in %d", keys[j], got, keys[0], want)
				}
			}
		}
	}
	if placed < testenv.UnderStress(1000, 5000) {
		t.Errorf("only %d names have a place", placed)
	}
}

// Through the client: no call on the sibling keys gets CROSSSLOT.
func TestSiblingsShareASlotOnACluster(t *testing.T) {
	t.Parallel()
	cl := testenv.Cluster(t)
	tolerateStalls(t, cl)
	c := locksOn(t, redislock.New(clusterClient(t, cl)), dlock.Config{Prefix: "p:", RenewInterval: time.Second}) // many together
	other := locksOn(t, redislock.New(clusterClient(t, cl)), dlock.Config{Prefix: "p:"})
	held, refused := map[string]*dlock.Guard{}, 0
	for i, name := range awkwardNames(testenv.UnderStress(300, 5000)) {
		if held[name] != nil {
			continue
		}
		if _, ok := redislock.Keys("p:", name); !ok {
			_, err := c.TryAcquire(t.Context(), name)
			wantError(t, err, dlock.ErrInvalidKey)
			refused++
			continue
		}
		g := acquire(t, c, name)
		wantBusy(t, other, name)
		if i%10 == 0 { // through the queue as well
			waiter := startWait(t, other, name)
			unlock(t, g)
			g = granted(t, waiter, time.Minute).guard
			check(t, g.Extend(t.Context(), time.Minute))
		}
		held[name] = g
	}
	for _, g := range held {
		unlock(t, g)
	}
	if refused == 0 || len(held) < 50 {
		t.Errorf("%d names refused, %d taken", refused, len(held))
	}
	for _, node := range cl.Nodes() {
		if n := countErrors(t, dialRedis(t, node.Addr()), "CROSSSLOT"); n != 0 {
			t.Errorf("%d CROSSSLOT at %s", n, node.Addr())
		}
	}
}

// Ownership is read from masters only, even by a client that reads from replicas.
func TestOnlyMastersAreAsked(t *testing.T) {
	t.Parallel()
	cl := testenv.ClusterWithReplicas(t, 1)
	tolerateStalls(t, cl)
	awaitReplicasInUse(t, cl)
	connect := func() *redis.ClusterClient {
		client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: cl.Addrs(), ContextTimeoutEnabled: true, ReadOnly: true})
		t.Cleanup(func() { _ = client.Close() })
		return client
	}
	open := func() *dlock.Client {
		return locksOn(t, redislock.New(connect()), dlock.Config{DefaultTTL: 30 * time.Second, RenewInterval: time.Second})
	}
	reader, a, b := connect(), open(), open()
	unlock(t, acquire(t, a, "warm"))
	unlock(t, acquire(t, b, "warm"))
	for i := range 30 { // it learns the topology
		if err := reader.Get(t.Context(), fmt.Sprint("read", i)).Err(); !errors.Is(err, redis.Nil) {
			t.Fatal(err)
		}
	}
	stopped := pauseReplicas(t, cl)
	if len(stopped) != 3 || !readsFail(t, reader) {
		t.Fatalf("%d replicas stopped, and plain reads do not mind", len(stopped))
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for i := range 10 {
		useWithoutReplicas(ctx, t, a, b, fmt.Sprintf("k%d", i))
	}
	g := acquire(t, a, "long")
	awaitConfirmed(t, 3, g)
	alive(t, g)
	for _, node := range stopped {
		check(t, node.Resume()) // and now it would answer
		if stats := dialRedis(t, node.Addr()).Info(t.Context(), "commandstats").Val(); strings.Contains(stats, "cmdstat_eval") || stats == "" {
			t.Errorf("a replica was asked:\n%s", stats)
		}
	}
}

// awaitReplicasInUse waits until each node lists the replicas for clients, which it does only once
// something was replicated.
func awaitReplicasInUse(t *testing.T, cl *servers.Cluster) {
	t.Helper()
	writer := clusterClient(t, cl)
	listed := func(n *servers.Redis) bool {
		ranges, err := dialRedis(t, n.Addr()).ClusterSlots(t.Context()).Result() //nolint:staticcheck // as the client asks
		return err == nil && !slices.ContainsFunc(ranges, func(r redis.ClusterSlot) bool { return len(r.Nodes) < 2 })
	}
	for _, node := range cl.Nodes() {
		testenv.Eventually(t, 20*time.Second, "the replicas are in use", func() bool {
			for i := range 10 {
				check(t, writer.Set(t.Context(), fmt.Sprint("data", i), 1, 0).Err())
			}
			return listed(node)
		})
	}
}

// pauseReplicas stops all nodes except the masters, and returns them.
func pauseReplicas(t *testing.T, cl *servers.Cluster) (stopped []*servers.Redis) {
	t.Helper()
	masters, err := cl.Masters(t.Context())
	check(t, err)
	for _, node := range cl.Nodes() {
		if !slices.Contains(masters, node) {
			check(t, node.Pause())
			stopped = append(stopped, node)
		}
	}
	return stopped
}

// readsFail reports whether a plain read gets no answer.
func readsFail(t *testing.T, reader *redis.ClusterClient) bool {
	t.Helper()
	for i := range 30 {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		err := reader.Get(ctx, fmt.Sprint("read", i)).Err()
		cancel()
		if err != nil && !errors.Is(err, redis.Nil) {
			return true
		}
	}
	return false
}

// useWithoutReplicas makes every call for a lock, none of which may wait for a replica.
func useWithoutReplicas(ctx context.Context, t *testing.T, a, b *dlock.Client, key string) {
	t.Helper()
	began := time.Now()
	g, err := a.Acquire(ctx, key)
	check(t, err)
	wantBusy(t, b, key)
	if claims := inspect(t, b, key); len(claims) != 1 || claims[0].Token != g.Token() {
		t.Errorf("claims %v", claims)
	}
	unlock(t, g)
	if claims := inspect(t, b, key); len(claims) != 0 {
		t.Errorf("claims %v", claims)
	}
	if took := time.Since(began); took > testenv.UnderStress(30*time.Second, time.Second) {
		t.Errorf("it took %v: a replica was asked", took)
	}
}

// Operators delete, rename, overwrite and flush: the holder finds out at its next renewal, and
// waiters continue.
func TestOperatorsEndLocks(t *testing.T) {
	t.Parallel()
	ttl := testenv.UnderStress(9*time.Second, 1500*time.Millisecond)
	for name, act := range map[string]func(context.Context, *redis.Client) error{
		"FlushAll":  func(ctx context.Context, c *redis.Client) error { return c.FlushAll(ctx).Err() },
		"Del":       func(ctx context.Context, c *redis.Client) error { return c.Del(ctx, "k").Err() },
		"Unlink":    func(ctx context.Context, c *redis.Client) error { return c.Unlink(ctx, "k").Err() },
		"Rename":    func(ctx context.Context, c *redis.Client) error { return c.Rename(ctx, "k", "moved").Err() },
		"Overwrite": func(ctx context.Context, c *redis.Client) error { return c.Set(ctx, "k", "mine", time.Second).Err() },
		"Expire":    func(ctx context.Context, c *redis.Client) error { return c.PExpire(ctx, "k", time.Millisecond).Err() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := testenv.Redis(t)
			direct := dialRedis(t, server.Addr())
			a, b := locksAt(t, server.Addr()), locksAt(t, server.Addr())
			for round := range testenv.UnderStress(2, 20) {
				g := acquire(t, a, "k", dlock.WithTTL(ttl))
				check(t, a.Lock(t.Context(), "keyed", dlock.WithTTL(ttl)))
				var waiter <-chan outcome
				if round%2 == 1 {
					waiter = startWait(t, b, "k", dlock.WithTTL(ttl))
				}
				check(t, act(t.Context(), direct))
				wantLost(t, g, time.Now(), ttl/3+slack)
				wantError(t, g.Unlock(t.Context()), dlock.ErrOwnershipLost)
				if waiter != nil {
					second := granted(t, waiter, testenv.UnderStress(30*time.Second, 3*time.Second)).guard
					if second.Token() <= g.Token() {
						t.Errorf("token %d after %d", second.Token(), g.Token())
					}
					unlock(t, second)
				}
				began := time.Now()
				if err := a.Unlock(t.Context(), "keyed"); err != nil && !hazardtest.GaveUp(t, err, began) {
					wantError(t, err, dlock.ErrOwnershipLost)
				}
			}
		})
	}
}
