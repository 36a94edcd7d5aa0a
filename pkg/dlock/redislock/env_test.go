package redislock_test

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
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

// slack is what a busy machine may add to a time limit.
var slack = testenv.UnderStress(4*time.Second, 250*time.Millisecond)

// dialRedis returns a client with the defaults of a user.
func dialRedis(t testing.TB, addr string) *redis.Client {
	t.Helper()
	c := redis.NewClient(&redis.Options{Addr: addr, ContextTimeoutEnabled: true})
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// locksOn returns a Client on a backend. It is closed when the test ends.
func locksOn(t testing.TB, b driver.Opener, cfg dlock.Config, opts ...dlock.Option) *dlock.Client {
	t.Helper()
	cfg.DefaultTTL = cmp.Or(cfg.DefaultTTL, testenv.Lease)
	c, err := dlock.New(&cfg, append([]dlock.Option{dlock.WithBackend(b), dlock.WithAdmin()}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// locksAt returns a Client whose locks last testenv.Lease, on its own redis client.
func locksAt(t testing.TB, addr string) *dlock.Client {
	t.Helper()
	return locksOn(t, redislock.New(dialRedis(t, addr)), dlock.Config{})
}

// renewingLocksAt returns a Client that renews often: its leases may be so long that no stall of the machine ends one.
func renewingLocksAt(t testing.TB, addr string, interval time.Duration) *dlock.Client {
	t.Helper()
	return locksOn(t, redislock.New(dialRedis(t, addr)), dlock.Config{DefaultTTL: 30 * time.Second, RenewInterval: interval})
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
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	g, err := c.Acquire(ctx, key, opts...)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func unlock(t testing.TB, g *dlock.Guard) {
	t.Helper()
	hazardtest.Unlock(t, g)
}

// tryUnlock is the same as unlock, for any goroutine: it returns an error that the machine has not caused.
func tryUnlock(t testing.TB, g *dlock.Guard) error {
	t.Helper()
	began := time.Now()
	err := g.Unlock(context.Background())
	if hazardtest.GaveUp(t, err, began) {
		return nil
	}
	return err
}

// unlockAll is the same as unlock for all locks of a call. It reports whether they are free.
func unlockAll(t testing.TB, all *dlock.Guards) (free bool) {
	t.Helper()
	began := time.Now()
	err := all.Unlock(context.Background())
	if err != nil && !hazardtest.GaveUp(t, err, began) {
		t.Fatal(err)
	}
	return err == nil
}

// closeLocks closes a Client, and reports whether Close gave up, because the machine delayed it.
func closeLocks(t testing.TB, c *dlock.Client) (gaveUp bool) {
	t.Helper()
	began := time.Now()
	err := c.Close()
	gaveUp = hazardtest.GaveUp(t, err, began)
	if !gaveUp {
		check(t, err)
	}
	return gaveUp
}

// oneAttempt is less than a call waits for its answer, which is 750 ms.
const oneAttempt = 500 * time.Millisecond

// evict evicts a claim, again if the machine stalled and the call was not answered. Only after such a call there may be
// nothing left to evict.
func evict(t testing.TB, admin *dlock.Admin, key string, token int64) {
	t.Helper()
	for repeats := false; ; repeats = true {
		began := time.Now()
		err := admin.Evict(t.Context(), key, token)
		switch {
		case repeats && errors.Is(err, dlock.ErrLockNotHeld):
			return
		case redislock.Unanswered(err) && testenv.Stalled(t, began, oneAttempt):
			continue
		}
		check(t, err)
		return
	}
}

// wantBusy asserts that a lock is held. A call that does not wait has 750 ms for its answer, so that it is made again.
func wantBusy(t testing.TB, c *dlock.Client, key string) {
	t.Helper()
	ok, err := answered(t, func() (bool, error) { return c.TryLock(t.Context(), key) })
	if ok || err != nil {
		t.Fatalf("%q: %v, %v", key, ok, err)
	}
}

func alive(t testing.TB, g *dlock.Guard) {
	t.Helper()
	if err := g.Context().Err(); err != nil || g.Remaining() <= 0 {
		t.Fatalf("the guard of %q is over: %v", g.Key(), context.Cause(g.Context()))
	}
}

// wantLost asserts that the guard is lost within a time that counts from start, without the stalls of the machine.
func wantLost(t testing.TB, g *dlock.Guard, start time.Time, within time.Duration) {
	t.Helper()
	select {
	case <-g.Done():
	case <-time.After(time.Minute):
	}
	took, lost := time.Since(start), testenv.StartMetronome(t).Lost(start)
	wantError(t, context.Cause(g.Context()), dlock.ErrOwnershipLost)
	if took > within+lost {
		t.Fatalf("lost after %v, want at most %v and %v of stalls", took, within, lost)
	}
}

// eventually is testenv.Eventually without the stalls of the machine.
func eventually(t testing.TB, within time.Duration, what string, cond func() bool) {
	t.Helper()
	began, metronome, holds := time.Now(), testenv.StartMetronome(t), false
	testenv.Eventually(t, within+time.Minute, what, func() bool {
		isOver := time.Since(began) > within+metronome.Lost(began) // before the look
		holds = cond()
		return holds || isOver
	})
	if !holds {
		t.Fatalf("not within %v: %s", within, what)
	}
}

func inspect(t testing.TB, c *dlock.Client, key string) []dlock.Claim {
	t.Helper()
	a, err := c.Admin()
	check(t, err)
	claims, err := answered(t, func() ([]dlock.Claim, error) { return a.Inspect(t.Context(), key) })
	check(t, err)
	return claims
}

// countQueued returns how many claims wait for key.
func countQueued(t testing.TB, c *dlock.Client, key string) int {
	t.Helper()
	n := 0
	for _, cl := range inspect(t, c, key) {
		if cl.Phase == dlock.PhaseQueued {
			n++
		}
	}
	return n
}

// An outcome is the result of a call that waited.
type outcome struct {
	guard *dlock.Guard
	err   error
	at    time.Time
}

// startWait starts to wait for key and returns when the server has it queued.
func startWait(t testing.TB, c *dlock.Client, key string, opts ...dlock.LockOption) <-chan outcome {
	t.Helper()
	before := countQueued(t, c, key)
	ch := make(chan outcome, 1)
	ctx := t.Context()
	go func() {
		g, err := c.Acquire(ctx, key, opts...)
		ch <- outcome{g, err, time.Now()}
	}()
	testenv.Eventually(t, time.Minute, "the claim is queued", func() bool { return countQueued(t, c, key) > before })
	return ch
}

// granted waits for the end of a wait, which must be a grant. The time does not count in which the machine stalls.
func granted(t testing.TB, ch <-chan outcome, within time.Duration) outcome {
	t.Helper()
	began, metronome := time.Now(), testenv.StartMetronome(t)
	for left := within; left > 0; left = within + metronome.Lost(began) - time.Since(began) {
		select {
		case got := <-ch:
			check(t, got.err)
			return got
		case <-time.After(left):
		}
	}
	t.Fatalf("not granted within %v", within)
	return outcome{}
}

// serverInfo returns one field of INFO.
func serverInfo(t testing.TB, c redis.Cmdable, section, field string) string {
	t.Helper()
	text, err := c.Info(t.Context(), section).Result()
	check(t, err)
	for line := range strings.Lines(text) {
		if value, ok := strings.CutPrefix(line, field+":"); ok {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// countErrors returns how often the server has answered with errors of this word.
func countErrors(t testing.TB, c redis.Cmdable, word string) int {
	t.Helper()
	n, _ := strconv.Atoi(strings.TrimPrefix(serverInfo(t, c, "errorstats", "errorstat_"+word), "count="))
	return n
}

// countCalls returns how often clients have called a command.
func countCalls(t testing.TB, c redis.Cmdable, name string) int {
	t.Helper()
	stat := strings.TrimPrefix(serverInfo(t, c, "commandstats", "cmdstat_"+name), "calls=")
	stat, _, _ = strings.Cut(stat, ",")
	n, _ := strconv.Atoi(stat)
	return n
}

// answerOnce answers the next script call of an operation with an error, and
// counts how often it did.
func answerOnce(t testing.TB, p *faultproxy.Proxy, op, reply string) *atomic.Int64 {
	t.Helper()
	hashes, count := redislock.Scripts(op), new(atomic.Int64)
	p.Intercept(func(cmd []string) faultproxy.Action {
		if cmd[0] == "EVALSHA" && hashes[cmd[1]] != "" && count.CompareAndSwap(0, 1) {
			return faultproxy.ReplyError(reply)
		}
		return faultproxy.Forward
	})
	return count
}

// startPair starts a master and a replica that is in sync.
func startPair(t testing.TB) (master, replica *servers.Redis) {
	t.Helper()
	master, replica = testenv.Redis(t), testenv.Redis(t)
	replicate(t, replica, master)
	return master, replica
}

func replicate(t testing.TB, replica, master *servers.Redis) {
	t.Helper()
	host, port := "NO", "ONE"
	if master != nil {
		var err error
		host, port, err = net.SplitHostPort(master.Addr())
		check(t, err)
	}
	c := replica.Client()
	defer c.Close()
	check(t, c.Do(t.Context(), "REPLICAOF", host, port).Err())
	if master == nil {
		return
	}
	testenv.Eventually(t, 20*time.Second, "the replica is in sync", func() bool {
		return serverInfo(t, c, "replication", "master_link_status") == "up"
	})
	awaitReplica(t, master)
}

// awaitReplica waits until a replica has everything that the master has.
func awaitReplica(t testing.TB, master *servers.Redis) {
	t.Helper()
	m := master.Client()
	defer m.Close()
	testenv.Eventually(t, 20*time.Second, "the replica confirms", func() bool {
		return m.Set(t.Context(), "synced", 1, 0).Err() == nil && m.Do(t.Context(), "WAIT", 1, 100).Val() == int64(1)
	})
}

// isolate stops replicas and cuts their links, so that they never receive what the master does from
// now on, not even from a buffer.
func isolate(t testing.TB, master *servers.Redis, replicas ...*servers.Redis) {
	t.Helper()
	for _, r := range replicas {
		check(t, r.Pause())
	}
	c := master.Client()
	defer c.Close()
	if n := c.Do(t.Context(), "CLIENT", "KILL", "TYPE", "REPLICA").Val(); n != int64(len(replicas)) {
		t.Fatalf("%v links cut, not %d", n, len(replicas))
	}
	check(t, c.Set(t.Context(), "unheard", 1, 0).Err())
	if n := c.Do(t.Context(), "WAIT", 1, 50).Val(); n != int64(0) {
		t.Fatalf("WAIT = %v: a replica still listens", n)
	}
}

// A fencedStore is a store that refuses writes with a smaller token.
type fencedStore struct {
	mu   sync.Mutex
	last int64
}

func (f *fencedStore) write(token int64) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if token <= f.last { // every holder writes once
		return fmt.Errorf("fenced: %d after %d", token, f.last)
	}
	f.last = token
	return nil
}

// allKeys returns all keys of a server.
func allKeys(t testing.TB, c *redis.Client) []string {
	t.Helper()
	var keys []string
	it := c.Scan(t.Context(), 0, "*", 1000).Iterator()
	for it.Next(t.Context()) {
		keys = append(keys, it.Val())
	}
	check(t, it.Err())
	return keys
}

// leftovers returns the keys of claims: everything except tokens and tombstones.
func leftovers(t testing.TB, c *redis.Client) []string {
	t.Helper()
	var left []string
	for _, k := range allKeys(t, c) {
		name, suffix, ok := strings.Cut(k, "\x01")
		suffix = strings.TrimPrefix(suffix, "\x01")
		if ok && (name == "dlock:token" || strings.HasPrefix(suffix, "b")) {
			continue
		}
		left = append(left, k)
	}
	return left
}

// A textBuffer collects what is written to it.
type textBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (w *textBuffer) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.buf.Write(p)
}

func (w *textBuffer) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.buf.String()
}
