package redislock_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
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
	"github.com/ceyewan/genesis/pkg/dlock/redislock"
)

// A renewal gets one transient error of each kind, and then transient errors for half a lease:
// there is no loss.
func TestTransientErrorIsNoLoss(t *testing.T) {
	t.Parallel()
	hazardtest.UntilValid(t, renewAfterErrors)
}

// renewAfterErrors is a round of TestTransientErrorIsNoLoss. It is void if a lock was lost because the machine stalled.
func renewAfterErrors(t *testing.T) (valid bool) {
	server := testenv.Redis(t)
	const ttl = 30 * time.Second // renewed after a third, so that a sixth is left after the errors
	errs := []string{
		"BUSY Redis is busy running a script.", "LOADING Redis is loading the dataset in memory", "READONLY You can't write against a read only replica.",
		"CLUSTERDOWN The cluster is down", "TRYAGAIN Multiple keys request during rehashing of slot", "MASTERDOWN Link with MASTER is down",
		"NOREPLICAS Not enough good replicas to write.", "NOSCRIPT No matching script.", "OOM command not allowed when used memory > 'maxmemory'.",
		"MISCONF Errors writing to the AOF file", "MOVED 1 127.0.0.1:1", "",
	}
	type held struct {
		*hazardtest.Hold
		word string
		hit  *scriptHits
	}
	var holds []held
	for _, most := range []int{1, 1000} {
		for _, text := range errs {
			proxy := testenv.Proxy(t, server.Addr())
			c := clientAt(t, proxy.Addr(), dlock.Config{DefaultTTL: ttl, RetryInterval: 50 * time.Millisecond})
			word, _, _ := strings.Cut(text, " ")
			g := hazardtest.Keep(t, acquire(t, c, fmt.Sprintf("%s%d", word, most)), ttl/20) // less than is left after the errors
			action := faultproxy.ReplyError(text)
			if text == "" { // the connection breaks
				action = faultproxy.DropReply
			}
			hit := hitNext(proxy, most, action, renewingHeld)
			holds = append(holds, held{g, word, hit})
			if most > 1 { // for half a lease from the first renewal on
				heal := sync.OnceFunc(func() { time.AfterFunc(ttl/2, proxy.Heal) })
				proxy.Intercept(func(cmd []string) faultproxy.Action {
					if kindOf(cmd) == renewingHeld {
						heal()
					}
					return hit.rule(cmd)
				})
			}
		}
	}
	direct, last, seen := directTo(t, server), make([]time.Duration, len(holds)), make([]bool, len(holds))
	testenv.Eventually(t, time.Minute, "all are renewed, or lost", func() bool {
		for i, h := range holds {
			left := leaseLeft(t, direct, h.Key())
			isRenewed := last[i] > 0 && left > last[i]+50*time.Millisecond
			last[i], seen[i] = left, seen[i] || isRenewed || h.Context().Err() != nil
		}
		return !slices.Contains(seen, false)
	})
	for _, h := range holds {
		if h.Lost(t) {
			return false
		}
		if h.hit.hits.Load() == 0 || h.hit.most == 1 && h.hit.seen.Load() < 2 {
			t.Errorf("%s: %d errors, %d renewals: the fault did not happen", h.word, h.hit.hits.Load(), h.hit.seen.Load())
		}
		if err := tryUnlock(t, h.Guard); err != nil {
			t.Errorf("%s: %v", h.word, err)
		}
	}
	return true
}

// Answers to renewals come late, and then not at all: the loss is reported before the key expires
// on the server.
func TestLossPrecedesExpiry(t *testing.T) {
	t.Parallel()
	server := testenv.Redis(t)
	direct, metronome := directTo(t, server), testenv.StartMetronome(t)
	const ttl, holders = 8 * time.Second, 10
	const beat = 20 * time.Millisecond // in which the metronome notes a stall
	rng := rand.New(rand.NewPCG(3, 3))
	for round := range testenv.UnderStress(2, 10) {
		proxy := testenv.Proxy(t, server.Addr())
		type held struct {
			g    *dlock.Guard
			lost loss
			dies time.Time // at the earliest
			took time.Duration
		}
		var holds [holders]held
		for i := range holders {
			c := clientAt(t, proxy.Addr(), dlock.Config{DefaultTTL: ttl})
			warm(t, c)
			g := acquire(t, c, fmt.Sprintf("k%d-%d", round, i))
			holds[i] = held{g: g, lost: watchLoss(g)}
			elapse(ttl / 3 / holders)
		}
		late := ttl / 6 // an attempt has a quarter of the lease
		until := ttl/3 + late + time.Duration(rng.Int64N(int64(ttl/6)))
		if round%2 == 1 {
			late, until = 3*ttl/4, ttl/3+ttl/20 // carried out, and not answered in time
		}
		proxy.Delay(0, late)
		elapse(until)
		proxy.BlackHole(true)
		fresh := 0
		for i := range holds {
			asked := time.Now()
			left := leaseLeft(t, direct, holds[i].g.Key())
			if left <= 0 && holds[i].g.Remaining() > 0 {
				t.Fatalf("%s is dead on the server and valid here", holds[i].g.Key())
			}
			if left > ttl/2 {
				fresh++ // it was renewed while answers were late
			}
			holds[i].dies, holds[i].took = asked.Add(left), time.Since(asked)
		}
		if fresh == 0 {
			t.Error("nothing was renewed while answers were late: the fault did not happen")
		}
		for _, h := range holds {
			at := h.lost.when(t)
			elapse(beat)
			// We do not know when exactly the server looked, and a stall of this process has us note the loss late.
			if excuse := h.took + metronome.LostBetween(h.dies.Add(-beat), at.Add(beat)); !at.Before(h.dies.Add(excuse)) {
				t.Errorf("answers late by %v: %s died on the server %v before the loss was told", late, h.g.Key(), at.Sub(h.dies))
			}
		}
		proxy.Heal()
		for _, h := range holds {
			expect(t, h.g.Unlock(context.Background()), dlock.ErrOwnershipLost)
		}
	}
}

// Tokens increase through the loss of the counter and of the whole server.
func TestFenceNeverGoesBack(t *testing.T) {
	t.Parallel()
	server := testenv.Redis(t)
	direct := directTo(t, server)
	const workers = 3
	var mu sync.Mutex
	last, n, deleted := int64(0), 0, 0
	record := func(token int64) {
		mu.Lock()
		defer mu.Unlock()
		if token <= last {
			t.Errorf("token %d after %d", token, last)
		}
		last = token
		n++
	}
	var clients []*dlock.Client
	for range workers {
		clients = append(clients, clientAt(t, server.Addr(), dlock.Config{DefaultTTL: time.Minute, RetryInterval: 10 * time.Millisecond}))
	}
	rounds, each := testenv.UnderStress(4, 10), testenv.UnderStress(150, 334)
	for range rounds {
		var wg sync.WaitGroup
		for w, c := range clients {
			wg.Go(func() {
				rng := rand.New(rand.NewPCG(5, uint64(w)))
				for range each {
					g, err := c.Acquire(context.Background(), "k")
					if err != nil {
						t.Error(err)
						return
					}
					record(g.Token())
					if rng.IntN(4) == 0 && direct.Del(context.Background(), fenceOf("k")).Val() == 1 {
						mu.Lock()
						deleted++
						mu.Unlock()
					}
					asked := time.Now()
					err = g.Unlock(context.Background())
					if err != nil && !hazardtest.GaveUp(t, err, asked) { // it goes on, and the next one waits for it
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
		g := acquire(t, clients[0], "k")
		record(g.Token())
		if err := server.Restart(context.Background(), false); err != nil {
			t.Fatal(err)
		}
		if stored := direct.DBSize(context.Background()).Val(); stored > 5 {
			t.Errorf("the server came back with %d keys: the fault did not happen", stored)
		}
		next := acquire(t, clients[1], "k")
		record(next.Token())
		expect(t, g.Unlock(context.Background()), dlock.ErrOwnershipLost)
		unlock(t, next)
	}
	if deleted == 0 {
		t.Error("the counter was never deleted: the fault did not happen")
	}
	t.Logf("%d tokens, %d deletions, %d restarts", n, deleted, rounds)
}

// increasing returns a function that acquires and releases a lock and asserts that its token is
// greater than the tokens before, and a function that returns the last token.
func increasing(t *testing.T, c *dlock.Client, key string) (take func(), last func() int64) {
	t.Helper()
	greatest := int64(0)
	take = func() {
		t.Helper()
		g := acquire(t, c, key)
		if g.Token() <= greatest {
			t.Errorf("token %d after %d", g.Token(), greatest)
		}
		greatest = max(greatest, g.Token())
		unlock(t, g)
	}
	return take, func() int64 { return greatest }
}

// The server comes back with an old snapshot, in which the counter has an old value.
func TestFenceSurvivesAnOldSnapshot(t *testing.T) {
	t.Parallel()
	server := testenv.Redis(t)
	direct := directTo(t, server)
	c := clientAt(t, server.Addr(), dlock.Config{DefaultTTL: 5 * time.Second, RetryInterval: 10 * time.Millisecond})
	take, _ := increasing(t, c, "k")
	for range testenv.UnderStress(3, 20) {
		take()
		if err := direct.Save(context.Background()).Err(); err != nil {
			t.Fatal(err)
		}
		old := storedAt(t, direct, fenceOf("k"))
		for range 10 {
			take()
		}
		if err := server.Kill(); err != nil {
			t.Fatal(err)
		}
		if err := server.Restart(context.Background(), true); err != nil {
			t.Fatal(err)
		}
		if now := storedAt(t, direct, fenceOf("k")); now != old {
			t.Errorf("the counter came back as %q, not as %q: the fault did not happen", now, old)
		}
		take()
	}
}

// A replica that lags behind becomes the master.
func TestFenceSurvivesFailover(t *testing.T) {
	t.Parallel()
	for range testenv.UnderStress(2, 10) {
		master, replica := testenv.Redis(t), testenv.Redis(t)
		link, proxy := testenv.Proxy(t, master.Addr()), testenv.Proxy(t, master.Addr())
		promoted, direct := directTo(t, replica), directTo(t, master)
		host, port, _ := strings.Cut(link.Addr(), ":")
		if err := promoted.ReplicaOf(context.Background(), host, port).Err(); err != nil {
			t.Fatal(err)
		}
		c := clientAt(t, proxy.Addr(), dlock.Config{DefaultTTL: 5 * time.Second, RetryInterval: 10 * time.Millisecond})
		take, last := increasing(t, c, "k")
		take()
		testenv.Eventually(t, 20*time.Second, "the replica has the counter", func() bool {
			return promoted.Get(context.Background(), fenceOf("k")).Val() == storedAt(t, direct, fenceOf("k"))
		})
		link.BlackHole(true)
		for range 10 {
			take()
		}
		if err := master.Kill(); err != nil {
			t.Fatal(err)
		}
		link.Cut()
		if err := promoted.ReplicaOf(context.Background(), "NO", "ONE").Err(); err != nil {
			t.Fatal(err)
		}
		if now := storedAt(t, promoted, fenceOf("k")); now == fmt.Sprint(last()) {
			t.Error("the replica did not lag: the fault did not happen")
		}
		proxy.Retarget(replica.Addr())
		proxy.Cut()
		take()
	}
}

// Locks that live about as long as their renewal interval are acquired and released: afterwards
// nothing is stored, and the server receives no calls for them.
func TestRenewalEndsWithUnlock(t *testing.T) {
	server := testenv.Redis(t)
	direct, monitor := directTo(t, server), testenv.MonitorRedis(t, server)
	const workers = 20
	ttl := testenv.UnderStress(300*time.Millisecond, 50*time.Millisecond)
	c := clientAt(t, server.Addr(), dlock.Config{DefaultTTL: ttl})
	each := testenv.UnderStress(20, 500)
	holds, lost := 0, 0
	for try := range 6 { // short leases end on a busy machine
		ended := holdBriefly(t, c, ttl, workers, each)
		holds, lost = holds+workers*each, lost+ended
		if ended <= workers*each/testenv.UnderStress(2, 5) {
			break
		}
		if try == 5 {
			t.Errorf("%d of %d holds took too long, and no fewer before: this machine is too slow", ended, workers*each)
		}
	}
	scripts := func() (n int) {
		for kind, calls := range kindsOf(t, monitor) {
			if kind != otherScript {
				n += calls
			}
		}
		return n
	}
	testenv.Eventually(t, time.Minute, "a time without calls", func() bool { // a release whose outcome is unknown goes on
		before := scripts()
		elapse(2 * ttl)
		return scripts() == before
	})
	quiet := len(monitor.Commands(t))
	elapse(5 * ttl)
	if left := leftovers(t, direct); len(left) != 0 {
		t.Errorf("left: %q", left)
	}
	released, renewals, late := endsOfRenewal(t, monitor.Commands(t), quiet, ttl)
	if renewals == 0 || released < holds-lost {
		t.Errorf("%d renewals, %d releases of %d: the test does not bite", renewals, released, holds)
	}
	t.Logf("%d holds, %d of which took too long, %d renewals, of which %d crossed the release", holds, lost, renewals, late)
}

// holdBriefly lets workers hold locks for up to half of a lease, each this many times, and returns how many ended because they
// took as long as a lease. No other may.
func holdBriefly(t *testing.T, c *dlock.Client, ttl time.Duration, workers, each int) int {
	t.Helper()
	var lost atomic.Int64
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(6, uint64(w)))
			for range each {
				asked := time.Now()
				g, err := c.Acquire(context.Background(), fmt.Sprintf("k%d", w))
				if err != nil {
					t.Error(err)
					return
				}
				granted := time.Now()
				if hold := rng.IntN(4); hold > 0 {
					elapse(ttl/3*time.Duration(hold)/2 - time.Duration(rng.IntN(int(2*time.Millisecond))))
				}
				unlocking := time.Now()
				err = g.Unlock(context.Background())
				switch {
				case mayHaveEnded(err, asked, unlocking, ttl):
					lost.Add(1)
				case err != nil:
					t.Errorf("after %v, %v of them after the grant: %v", time.Since(asked), time.Since(granted), err)
				}
			}
		})
	}
	wg.Wait()
	return int(lost.Load())
}

// mayHaveEnded reports whether a call for a lock that was asked for at a time failed because its lease had ended, which it cannot
// have before that time and nine tenths of its TTL, less two milliseconds, or because the call had no answer: it does not give up sooner than after a
// quarter of the TTL.
func mayHaveEnded(err error, asked, called time.Time, ttl time.Duration) bool {
	switch {
	case errors.Is(err, dlock.ErrOwnershipLost):
		return time.Since(asked) >= ttl-ttl/10-2*time.Millisecond
	case errors.Is(err, dlock.ErrUnknownOutcome), redislock.Unanswered(err):
		return time.Since(called) >= min(ttl/4, oneAttempt)
	}
	return false
}

// endsOfRenewal asserts from the commands of a server that renewals only renew, that they end with
// the release of their claim, and that there is none after the command quiet. It returns how many
// claims were released, how many renewals there were, and how many of them came after the release.
func endsOfRenewal(t *testing.T, all []testenv.Command, quiet int, ttl time.Duration) (releases, renewals, late int) {
	t.Helper()
	released := map[string]time.Duration{}
	var kind scriptKind
	for i, s := range all {
		if s.Lua { // by the script before it
			if verb := strings.ToUpper(s.Args[0]); kind == renewingHeld && verb != "GET" && verb != "PEXPIRE" {
				t.Fatalf("a renewal does more than renew: %q", s.Args)
			}
			continue
		}
		kind = kindOf(s.Args)
		if i > quiet && kind != otherScript {
			t.Errorf("a %s after all is unlocked", kind)
		}
		for _, id := range claimIDs(s.Args) {
			at, over := released[id]
			switch kind {
			case releasing:
				released[id] = s.At
			case renewingHeld, renewingQueue:
				renewals++
				if over { // it was in flight when the release was sent
					late++
					if s.At-at > testenv.UnderStress(5*time.Second, ttl) {
						t.Errorf("a %s %v after the release", kind, s.At-at)
					}
				}
			default:
			}
		}
	}
	return len(released), renewals, late
}

// leastTTL and mostTTL are the limits of a lease in Redis.
const leastTTL, mostTTL = 10 * time.Millisecond, 24 * time.Hour

// awkwardTTLs are at the limits, of odd units, and far outside.
var awkwardTTLs = []time.Duration{
	0, -1, 1, -5 * time.Millisecond, 999 * time.Microsecond, time.Millisecond, leastTTL - 1, leastTTL, leastTTL + 1, 999 * time.Millisecond,
	time.Second, time.Second + 1, 1500*time.Millisecond + 500*time.Microsecond, mostTTL - 1, mostTTL, mostTTL + 1,
	math.MaxInt64, math.MinInt64, math.MaxInt64 / 1000, 9_000_000_001 * time.Second / 1000,
}

// Any TTL is refused, or kept to the millisecond.
func TestTTLIsKeptOrRefused(t *testing.T) {
	t.Parallel()
	server := testenv.Redis(t)
	direct := directTo(t, server)
	c := clientAt(t, server.Addr(), dlock.Config{})
	rng := rand.New(rand.NewPCG(9, 9))
	accepted, refused, long, kept := 0, 0, 0, 0
	for i := range testenv.UnderStress(400, 50_000) {
		ttl := time.Duration(rng.Int64N(1 << (1 + rng.IntN(62))))
		if i < len(awkwardTTLs) {
			ttl = awkwardTTLs[i]
		}
		if i%7 == 3 {
			ttl = leastTTL + time.Duration(rng.Int64N(int64(2*time.Minute)))
		}
		switch {
		case ttl < leastTTL || ttl > mostTTL:
			refused++
			_, err := c.TryAcquire(context.Background(), "k", dlock.WithTTL(ttl), dlock.WithoutRenewal())
			expect(t, err, dlock.ErrInvalidTTL)
			if storedAt(t, direct, "k") != "" {
				t.Fatalf("%v was refused, and is stored", ttl)
			}
		default:
			isKept := keptTTL(t, c, direct, ttl)
			if isKept {
				accepted++
			}
			if ttl >= 100*time.Millisecond && ttl < 10*time.Second { // a slow machine may not see some of them
				long++
				if isKept {
					kept++
				}
			}
		}
	}
	if accepted == 0 || refused == 0 || kept < long/2 {
		t.Errorf("%d accepted, %d refused; %d of %d short ones were kept", accepted, refused, kept, long)
	}
	extendByAll(t, c, direct)
}

// keptTTL acquires with an allowed TTL, asserts that the server keeps it, and releases. It reports
// false if a very short lease ended before the answer came.
func keptTTL(t *testing.T, c *dlock.Client, direct *redis.Client, ttl time.Duration) bool {
	t.Helper()
	isFree := func() bool { return storedAt(t, direct, "k") == "" }
	var asked time.Time
	var g *dlock.Guard
	for g == nil { // again if a busy machine left it without an answer
		var err error
		asked = time.Now()
		g, err = c.TryAcquire(context.Background(), "k", dlock.WithTTL(ttl), dlock.WithoutRenewal())
		if err == nil {
			break
		}
		ended := ttl < 10*time.Second && mayHaveEnded(err, asked, asked, ttl)
		if !ended && (!redislock.Unanswered(err) || !testenv.Stalled(t, asked, oneAttempt)) {
			t.Fatalf("TTL %v: after %v: %v", ttl, time.Since(asked), err)
		}
		testenv.Eventually(t, time.Minute, "the key is free", isFree)
		if ended {
			return false
		}
	}
	remaining := g.Remaining()
	left := leaseLeft(t, direct, "k")
	took := time.Since(asked)
	gone := left == -2 && took >= ttl-time.Millisecond
	if left == -1 || left > ttl+time.Millisecond || !gone && left < ttl-took-time.Millisecond {
		t.Fatalf("TTL %v: %v left after %v", ttl, left, took)
	}
	if remaining > ttl {
		t.Fatalf("TTL %v: the guard believes in %v", ttl, remaining)
	}
	unlocking := time.Now()
	err := tryUnlock(t, g)
	if err != nil && !mayHaveEnded(err, asked, unlocking, ttl) {
		t.Fatalf("TTL %v: after %v: %v", ttl, time.Since(asked), err)
	}
	testenv.Eventually(t, time.Minute, "the key is free", isFree)
	return true
}

// extendByAll asserts that extending obeys the same limits.
func extendByAll(t *testing.T, c *dlock.Client, direct *redis.Client) {
	t.Helper()
	g := acquire(t, c, "k")
	for _, ttl := range awkwardTTLs {
		asked := time.Now()
		err := g.Extend(context.Background(), ttl)
		if ttl < leastTTL || ttl > mostTTL {
			expect(t, err, dlock.ErrInvalidTTL)
			continue
		}
		left := leaseLeft(t, direct, "k")
		took := time.Since(asked)
		gone := left == -2 && took >= ttl-ttl/10 // so short a lease may end on a busy machine
		switch {
		case err != nil && !mayHaveEnded(err, asked, asked, ttl):
			t.Fatalf("extend by %v: after %v: %v", ttl, took, err)
		case err == nil && !gone && (left <= 0 || left > ttl+time.Millisecond || left < ttl-took-time.Millisecond):
			t.Fatalf("extended by %v: %v left after %v", ttl, left, took)
		}
		if ttl < 10*time.Second {
			unlocking := time.Now()
			err = tryUnlock(t, g)
			if err != nil && !mayHaveEnded(err, asked, unlocking, ttl) {
				t.Fatalf("extended by %v: unlocked after %v: %v", ttl, time.Since(asked), err)
			}
			g = acquire(t, c, "k")
		}
	}
}

// No call sends a time of the client's clock, or sets an expiry at an absolute time.
func TestNoClientClockIsSent(t *testing.T) {
	t.Parallel()
	server := testenv.Redis(t)
	direct, monitor := directTo(t, server), testenv.MonitorRedis(t, server)
	// The leases outlast a machine that stalls; a renewal comes after a third of them.
	c := clientAt(t, server.Addr(), dlock.Config{DefaultTTL: testenv.UnderStress(30*time.Second, 6*time.Second)})
	other := clientAt(t, server.Addr(), dlock.Config{DefaultTTL: testenv.UnderStress(25*time.Second, 5*time.Second)})
	for i := range testenv.UnderStress(2, 20) {
		useEveryScript(t, c, other, direct, monitor, i)
	}
	now := time.Now()
	for _, s := range monitor.Commands(t) {
		noClockIn(t, s, now)
	}
	kinds := kindsOf(t, monitor)
	for _, kind := range []scriptKind{acquiring, renewingHeld, releasing, renewingQueue, inspecting} {
		if kinds[kind] == 0 {
			t.Errorf("no %s was seen: the test does not bite", kind)
		}
	}
}

// kindsOf counts the scripts that clients have called.
func kindsOf(t *testing.T, monitor *testenv.Monitor) map[scriptKind]int {
	t.Helper()
	kinds := map[scriptKind]int{}
	for _, s := range monitor.Commands(t) {
		if !s.Lua {
			kinds[kindOf(s.Args)]++
		}
	}
	return kinds
}

// useEveryScript passes a lock from c to other and makes all other kinds of calls. In every second
// round the holder is evicted.
func useEveryScript(t *testing.T, c, other *dlock.Client, direct *redis.Client, monitor *testenv.Monitor, round int) {
	t.Helper()
	admin, err := other.Admin()
	check(t, err)
	g := acquire(t, c, "k")
	granted := make(chan *dlock.Guard, 1)
	go func() {
		limited, cancel := context.WithTimeout(context.Background(), 2*time.Minute) // two waits of at most a minute follow
		defer cancel()
		next, err := other.Acquire(limited, "k")
		if err != nil {
			t.Error(err)
		}
		granted <- next
	}()
	testenv.Eventually(t, time.Minute, "a caller waits", func() bool { return direct.ZCard(context.Background(), "{k}\x01y").Val() == 1 })
	short, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	_ = c.Lock(short, "k")
	cancel()
	_, _ = c.TryAcquire(context.Background(), "k")
	testenv.Eventually(t, time.Minute, "both are renewed", func() bool {
		seen := kindsOf(t, monitor)
		return seen[renewingHeld] > round && seen[renewingQueue] > round
	})
	if round%2 == 0 {
		unlock(t, g)
	} else {
		evict(t, admin, "k", g.Token())
	}
	next := <-granted
	if next == nil {
		t.FailNow()
	}
	if err := next.Extend(context.Background(), testenv.UnderStress(time.Minute, 10*time.Second)); err != nil {
		t.Error(err)
	}
	if _, _, err := admin.ListPage(context.Background(), "", "", 10); err != nil {
		t.Error(err)
	}
	unlock(t, next)
}

// noClockIn asserts that a command sets no expiry at an absolute time, and contains no number that
// is a time of this year in any unit.
func noClockIn(t *testing.T, s testenv.Command, now time.Time) {
	t.Helper()
	for i, word := range s.Args {
		switch strings.ToUpper(word) {
		case "PXAT", "EXAT", "EXPIREAT", "PEXPIREAT":
			t.Errorf("an expiry at a fixed time: %q", s.Args)
		}
		number, err := strconv.ParseFloat(word, 64)
		if s.Lua || i < 3 || err != nil {
			continue
		}
		for _, unit := range []float64{1, 1e3, 1e6, 1e9} {
			if math.Abs(number/unit-float64(now.Unix())) < 366*24*3600 {
				if s.Args[0] == "evalsha" && kindOf(s.Args) == releasing && i == len(s.Args)-1 {
					continue // an eviction names the token, which the server made
				}
				t.Errorf("a clock's time %s in %q", word, s.Args)
			}
		}
	}
}

// The server's clock jumps and a held lock is gone: the holder finds out at its next renewal, and
// its writes are refused.
func TestServerClockJumpIsALoss(t *testing.T) {
	t.Parallel()
	server := testenv.Redis(t)
	direct := directTo(t, server)
	store, metronome := guardedValue{direct}, testenv.StartMetronome(t)
	const holders = 10
	ttl := testenv.UnderStress(6*time.Second, 1500*time.Millisecond)
	a, b := clientAt(t, server.Addr(), dlock.Config{DefaultTTL: ttl}), clientAt(t, server.Addr(), dlock.Config{DefaultTTL: time.Minute})
	rng := rand.New(rand.NewPCG(11, 11))
	for round := range testenv.UnderStress(1, 20) {
		var guards [holders]*dlock.Guard
		var lost [holders]loss
		for i := range holders {
			guards[i] = acquire(t, a, fmt.Sprintf("k%d-%d", round, i))
			lost[i] = watchLoss(guards[i])
		}
		elapse(time.Duration(rng.Int64N(int64(ttl))))
		jumped := time.Now()
		for _, g := range guards {
			if !direct.PExpire(context.Background(), g.Key(), time.Millisecond).Val() {
				t.Fatal("nothing to expire: the fault did not happen")
			}
		}
		for i, g := range guards {
			next := acquire(t, b, g.Key())
			if ok, err := store.write(g.Key(), next.Token(), "good"); !ok || err != nil {
				t.Errorf("the write of the holder was refused: %v", err)
			}
			if ok, err := store.write(g.Key(), g.Token(), "stale"); ok || err != nil {
				t.Errorf("a stale write was taken: %v", err)
			}
			// One renewal interval and a round trip, not at the end of the lease.
			at := lost[i].when(t)
			if took := at.Sub(jumped) - metronome.LostBetween(jumped, at); took > ttl/3+testenv.UnderStress(ttl/2, 100*time.Millisecond) {
				t.Errorf("lost %v after the jump without stalls, want %v", took, ttl/3)
			}
			expect(t, context.Cause(g.Context()), dlock.ErrOwnershipLost)
			expect(t, g.Unlock(context.Background()), dlock.ErrOwnershipLost)
			if storedToken(t, direct, g.Key()) != next.Token() {
				t.Error("the lock of the next was touched")
			}
			unlock(t, next)
		}
	}
}
