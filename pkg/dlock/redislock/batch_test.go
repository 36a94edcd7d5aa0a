package redislock_test

import (
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
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

// Several keys take one request to acquire and one to release, if nothing is in the way.
func TestSeveralKeysInOneRequest(t *testing.T) {
	t.Parallel()
	server := testenv.Redis(t)
	rdb := dialRedis(t, server.Addr())
	c := locksOn(t, redislock.New(dialRedis(t, server.Addr())), dlock.Config{DefaultTTL: time.Hour})
	pair := func(keys ...string) {
		t.Helper()
		all, err := c.AcquireAll(t.Context(), keys)
		check(t, err)
		for _, key := range keys {
			if value := rdb.Get(t.Context(), key).Val(); len(strings.Fields(value)) < 4 || rdb.PTTL(t.Context(), key).Val() < time.Second {
				t.Errorf("%q is %q, not a lock with a lease", key, value)
			}
		}
		left := func() int64 { return rdb.Exists(t.Context(), keys...).Val() }
		if !unlockAll(t, all) {
			testenv.Eventually(t, time.Minute, "the delayed release is carried out", func() bool { return left() == 0 })
		} else if n := left(); n != 0 {
			t.Errorf("%d of %q are left", n, keys)
		}
	}
	pair("a", "b", "c") // sends the scripts
	monitor := testenv.MonitorRedis(t, server)
	began := time.Now()
	pair("a", "b", "c", "{x}d", "{x}e") // with several counters
	stalled := testenv.Stalled(t, began, oneAttempt)
	sent := slices.DeleteFunc(monitor.Commands(t), func(c testenv.Command) bool {
		return c.Lua || !strings.HasPrefix(strings.ToUpper(c.Args[0]), "EVAL")
	})
	if stalled { // a request may have been repeated for want of an answer
		sent = slices.CompactFunc(sent, func(a, b testenv.Command) bool { return slices.Equal(a.Args, b.Args) })
	}
	if len(sent) != 2 {
		t.Errorf("%d requests: %v", len(sent), sent)
	}
}

// batchOf returns requests for keys, with claims that are numbered from 1 on.
func batchOf(keys ...string) (rs []driver.Request) {
	for i, key := range keys {
		rs = append(rs, driver.Request{Ref: driver.Ref{Key: key, ID: claimID(i + 1), TTL: time.Minute}})
	}
	return rs
}

// A server that refuses a write of a batch has stored all claims or none: at maxmemory, and for a user with few rights.
// That also holds if some of the claims were stored before.
func TestBatchIsStoredAsAWhole(t *testing.T) {
	t.Parallel()
	for name, refuse := range map[string]func(rdb *redis.Client) error{
		"maxmemory": func(rdb *redis.Client) error { return rdb.ConfigSet(t.Context(), "maxmemory", "1").Err() },
		"no SET":    func(rdb *redis.Client) error { return rdb.Do(t.Context(), "ACL", "SETUSER", "locks", "-set").Err() },
		"no PEXPIRE": func(rdb *redis.Client) error {
			return rdb.Do(t.Context(), "ACL", "SETUSER", "locks", "-pexpire").Err()
		},
		"no TIME": func(rdb *redis.Client) error { return rdb.Do(t.Context(), "ACL", "SETUSER", "locks", "-time").Err() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := testenv.Redis(t, "--maxmemory-policy", "noeviction")
			rdb := dialRedis(t, server.Addr())
			check(t, rdb.Do(t.Context(), "ACL", "SETUSER", "locks", "on", ">secret", "~*", "&*", "+@all").Err())
			user := redis.NewClient(&redis.Options{Addr: server.Addr(), Username: "locks", Password: "secret"})
			t.Cleanup(func() { _ = user.Close() })
			d, err := redislock.New(user).Open(driver.Options{Logger: slog.New(slog.DiscardHandler)})
			check(t, err)
			t.Cleanup(func() { _ = d.Close() })
			redislock.NeverInline(d)
			b := d.(driver.Batcher)
			submit := func(keys ...string) ([]driver.State, error) {
				return answered(t, func() ([]driver.State, error) { return b.AcquireBatch(t.Context(), batchOf(keys...)) })
			}
			_, err = submit("a", "b")
			check(t, err)
			check(t, refuse(rdb))
			for _, keys := range [][]string{{"c", "d"}, {"a", "b", "c", "d"}} {
				states, err := submit(keys...)
				stored := rdb.Exists(t.Context(), "c", "d").Val()
				switch {
				case err == nil && name == "no PEXPIRE" && keys[0] == "c": // no claim was stored before, so none is extended
					if stored != 2 || rdb.PTTL(t.Context(), "c").Val() < time.Second {
						t.Errorf("%d claims are stored", stored)
					}
					check(t, rdb.Del(t.Context(), "c", "d").Err())
				case err == nil || driver.ClassOf(err) == driver.Ambiguous:
					t.Errorf("%q: %v, error %v", keys, states, err)
				case stored != 0:
					t.Errorf("%q: %v, and %d claims are stored", keys, err, stored)
				}
			}
			if left := rdb.Exists(t.Context(), "a", "b").Val(); left != 2 {
				t.Errorf("%d of the first two claims are left", left)
			}
		})
	}
}

// AcquireAll at maxmemory leaves nothing, and gets its keys when there is memory again.
func TestSeveralKeysAtMaxmemory(t *testing.T) {
	t.Parallel()
	server := testenv.Redis(t, "--maxmemory-policy", "noeviction")
	rdb, c := dialRedis(t, server.Addr()), locksAt(t, server.Addr())
	keys := []string{"a", "b", "c"}
	check(t, rdb.ConfigSet(t.Context(), "maxmemory", "1").Err())
	_, err := answered(t, func() (*dlock.Guards, error) { return c.AcquireAll(t.Context(), keys, dlock.WithWait(0)) })
	wantError(t, err, redislock.ErrOutOfMemory)
	if left := leftovers(t, rdb); len(left) > 0 || errors.Is(err, dlock.ErrUnknownOutcome) {
		t.Errorf("%q are stored, and the error is %v", left, err)
	}
	done := make(chan error, 1)
	before := countErrors(t, rdb, "OOM")
	go func() {
		all, err := c.AcquireAll(t.Context(), keys)
		if err == nil {
			err = all.Unlock(t.Context())
		}
		done <- err
	}()
	testenv.Eventually(t, time.Minute, "the call tries", func() bool { return countErrors(t, rdb, "OOM") > before })
	check(t, rdb.ConfigSet(t.Context(), "maxmemory", "0").Err())
	check(t, <-done)
}

// The answer of a batch is lost on the way: a call that waits finds its claims again, with the tokens that they were
// granted, and one that does not wait reports an unknown outcome and leaves nothing.
func TestLostAnswerOfABatch(t *testing.T) {
	t.Parallel()
	server := testenv.Redis(t)
	rdb, proxy := dialRedis(t, server.Addr()), testenv.Proxy(t, server.Addr())
	c := locksOn(t, redislock.New(dialRedis(t, proxy.Addr())), dlock.Config{DefaultTTL: time.Minute})
	keys := []string{"a", "b", "c"}
	for range 2 { // sends the scripts
		all, err := c.AcquireAll(t.Context(), keys)
		check(t, err)
		unlockAll(t, all)
	}
	var mu sync.Mutex
	var sent []string // the IDs of each attempt
	lose := func(most int) {
		proxy.Intercept(func(cmd []string) faultproxy.Action {
			if kindOf(cmd) != acquiring {
				return faultproxy.Forward
			}
			mu.Lock()
			defer mu.Unlock()
			sent = append(sent, cmd[len(cmd)-3])
			if len(sent) <= most {
				return faultproxy.DropReply
			}
			return faultproxy.Forward
		})
	}
	lose(1)
	all, err := c.AcquireAll(t.Context(), keys)
	check(t, err)
	mu.Lock()
	if stored := rdb.Get(t.Context(), "a").Val(); len(sent) < 2 || sent[0] != sent[1] || len(sent[0]) != 96 || !strings.HasPrefix(stored, sent[0][:32]) {
		t.Errorf("the attempts have the IDs %q, and %q is stored", sent, stored)
	}
	mu.Unlock()
	unlockAll(t, all)
	lose(1 << 30)
	_, err = c.AcquireAll(t.Context(), keys, dlock.WithWait(0))
	wantError(t, err, dlock.ErrUnknownOutcome)
	if errors.Is(err, dlock.ErrLockHeldByOther) {
		t.Errorf("its own claims are those of another: %v", err)
	}
	testenv.Eventually(t, time.Minute, "nothing is left", func() bool { return len(leftovers(t, rdb)) == 0 })
}

// On a cluster, keys of one slot and of several are acquired, by a client of the cluster and by one of a single server.
func TestSeveralKeysOnACluster(t *testing.T) {
	t.Parallel()
	cl := testenv.Cluster(t)
	tolerateStalls(t, cl)
	node := cl.Nodes()[0]
	mine := []string{keyOn(t, cl, node, "k"), keyOn(t, cl, node, "l"), keyOn(t, cl, node, "m")}
	for name, c := range map[string]*dlock.Client{
		"cluster": locksOn(t, redislock.New(clusterClient(t, cl)), dlock.Config{DefaultTTL: time.Minute}),
		"server":  locksOn(t, redislock.New(dialRedis(t, node.Addr())), dlock.Config{DefaultTTL: time.Minute}),
	} {
		for range 2 {
			for _, keys := range [][]string{mine, {"{" + mine[0] + "}1", "{" + mine[0] + "}2"}} {
				all, err := c.AcquireAll(t.Context(), keys)
				check(t, err)
				for _, key := range keys {
					if all.Token(key) == 0 {
						t.Errorf("%s: no token for %q", name, key)
					}
				}
				unlockAll(t, all)
			}
		}
	}
}

// Each claim of a batch has its own Info.
func TestInfoOfEachKey(t *testing.T) {
	t.Parallel()
	d := openDriver(t, testenv.Redis(t).Addr())
	rs := batchOf("a", "b", "c")
	for i := range rs {
		rs[i].Info.Purpose = strings.Repeat("x", i)
	}
	_, err := answered(t, func() ([]driver.State, error) { return d.(driver.Batcher).AcquireBatch(t.Context(), rs) })
	check(t, err)
	for i, r := range rs {
		claims, err := d.(driver.Admin).Inspect(t.Context(), r.Key)
		check(t, err)
		if len(claims) != 1 || claims[0].Info.Purpose != strings.Repeat("x", i) {
			t.Errorf("%s: %+v", r.Key, claims)
		}
	}
}

// Each lock of a batch has a token above the last one of its own counter.
func TestBatchWithSeveralCounters(t *testing.T) {
	t.Parallel()
	server := testenv.Redis(t)
	d, direct := openDriver(t, server.Addr()), directTo(t, server)
	const last = 1 << 52
	if redislock.CounterOf("a") == redislock.CounterOf("b") {
		t.Fatal("a and b have the same counter")
	}
	check(t, direct.Set(t.Context(), redislock.CounterOf("b"), last, 0).Err())
	states, err := answered(t, func() ([]driver.State, error) { return d.(driver.Batcher).AcquireBatch(t.Context(), batchOf("a", "b")) })
	check(t, err)
	if states[0].Token >= last || states[1].Token <= last {
		t.Errorf("%+v", states)
	}
}

// A batch that is submitted again leaves the mark by which a release finds the claims that wait.
func TestRepeatedBatchKeepsWaiters(t *testing.T) {
	t.Parallel()
	hazardtest.Within(t, place, repeatedBatchKeepsWaiters)
}

func repeatedBatchKeepsWaiters(t testing.TB) {
	t.Helper()
	server := testenv.Redis(t)
	d, direct := openDriver(t, server.Addr()), directTo(t, server)
	b, rs := d.(driver.Batcher), batchOf("a", "b")
	submit := func() ([]driver.State, error) { return b.AcquireBatch(t.Context(), rs) }
	first, err := answered(t, submit)
	check(t, err)
	submitClaim(t, d, "a", 3, time.Minute, driver.Queued)
	before := direct.Get(t.Context(), "a").Val()
	again, err := answered(t, submit)
	check(t, err)
	if after := direct.Get(t.Context(), "a").Val(); after != before || again[0].Token != first[0].Token {
		t.Errorf("%q became %q", before, after)
	}
	calls := 0
	states, err := answered(t, func() ([]driver.State, error) {
		calls++
		return b.ReleaseBatch(t.Context(), []driver.Ref{rs[1].Ref, rs[0].Ref})
	})
	check(t, err)
	released := states[0].Phase == driver.Held || calls > 1 && direct.Exists(t.Context(), "b").Val() == 0 // by a call without an answer
	if !released || states[1].Phase != driver.Unknown {
		t.Errorf("%+v: only b has nobody who waits", states)
	}
}
