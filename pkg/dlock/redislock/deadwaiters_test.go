package redislock_test

import (
	"os"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ceyewan/genesis/internal/hazardtest"
	"github.com/ceyewan/genesis/internal/servers"
	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// maxScriptCommands is how many commands one script may call while it drops the maximum number of
// dead waiters: a few for each chunk.
const maxScriptCommands = 40

// checkScriptsAreBounded fails if a script called many commands, or one command with many claims.
func checkScriptsAreBounded(t *testing.T, m *testenv.Monitor) {
	t.Helper()
	calls, most, widest := 0, 0, 0
	for _, s := range m.Commands(t) {
		if !s.Lua {
			calls = 0
			continue
		}
		calls++
		most, widest = max(most, calls), max(widest, len(s.Args))
	}
	if most > maxScriptCommands || widest > 130 {
		t.Errorf("a script called %d commands, of up to %d words", most, widest)
	}
}

// deadQueue stores a lock with a holder and many dead waiters.
func deadQueue(t testing.TB, server *servers.Redis, d driver.Driver, dead int) *redis.Client {
	t.Helper()
	direct := dialRedis(t, server.Addr())
	submitClaim(t, d, "k", dead+1, 30*time.Second, driver.Held)
	seedWaiters(t, direct, "k", 1, dead, -time.Second, "dlock:nobody")
	return direct
}

// A living waiter is served no matter how many dead waiters are before it, and each script does
// only a bounded part of the work.
func TestManyDeadWaiters(t *testing.T) {
	t.Parallel()
	const dead = 10_000
	server := testenv.Redis(t)
	d := openDriver(t, server.Addr())
	direct := deadQueue(t, server, d, dead)
	living := startWait(t, locksAt(t, server.Addr()), "k")
	m := testenv.MonitorRedis(t, server)
	releaseClaim(t, d, "k", dead+1, 30*time.Second)
	unlock(t, granted(t, living, 20*time.Second).guard)
	checkScriptsAreBounded(t, m)
	testenv.Eventually(t, time.Minute, "nothing is left", func() bool {
		return direct.Exists(t.Context(), queueOf("k"), waitersOf("k")).Val() == 0
	})
}

// A call that does not wait gets a free lock that has only dead waiters.
func TestTryLockBehindDeadWaiters(t *testing.T) {
	t.Parallel()
	dead := testenv.UnderStress(2_000, 10_000) // a script drops 512, and an attempt of a Client has two seconds
	server := testenv.Redis(t)
	d := openDriver(t, server.Addr())
	direct := deadQueue(t, server, d, dead)
	check(t, direct.Del(t.Context(), "k").Err())
	m := testenv.MonitorRedis(t, server)
	if testenv.UnderStress(false, true) {
		g, err := locksAt(t, server.Addr()).TryAcquire(t.Context(), "k")
		check(t, err)
		unlock(t, g)
	} else { // by the driver, whose call has no time limit
		submitClaim(t, d, "k", dead+2, time.Minute, driver.Held)
		releaseClaim(t, d, "k", dead+2, time.Minute)
	}
	checkScriptsAreBounded(t, m)
}

// One release drops a whole queue of dead waiters, even if no other call follows.
func TestReleaseGoesOnInTheBackground(t *testing.T) {
	t.Parallel()
	server := testenv.Redis(t)
	d := openDriver(t, server.Addr())
	direct := deadQueue(t, server, d, 3000)
	releaseClaim(t, d, "k", 3001, 30*time.Second)
	testenv.Eventually(t, time.Minute, "the dead waiters are dropped", func() bool {
		return direct.Exists(t.Context(), queueOf("k"), waitersOf("k")).Val() == 0
	})
}

// While the lock is held, each renewal drops dead waiters at the head.
func TestRenewalTrimsTheQueue(t *testing.T) {
	t.Parallel()
	hazardtest.Within(t, place, renewalTrimsTheQueue)
}

func renewalTrimsTheQueue(t testing.TB) {
	t.Helper()
	const ttl, dead = 30 * time.Second, 100
	server := testenv.Redis(t)
	d := openDriver(t, server.Addr())
	direct := deadQueue(t, server, d, dead)
	submitClaim(t, d, "k", dead+2, ttl, driver.Queued)
	for before := int64(dead + 1); before > 1; {
		if st := renewClaim(t, d, "k", dead+2, ttl); st.Phase != driver.Queued {
			t.Fatalf("the waiter is %v", st.Phase)
		}
		n := direct.ZCard(t.Context(), queueOf("k")).Val()
		if n >= before || n != direct.HLen(t.Context(), waitersOf("k")).Val() {
			t.Fatalf("%d of %d are left after a renewal", n, before)
		}
		before = n
	}
}

// Claims that join a long queue drop dead waiters from anywhere in it.
func TestNewcomersSampleALongQueue(t *testing.T) {
	t.Parallel()
	const ttl, dead = 30 * time.Second, 2000
	server := testenv.Redis(t)
	d := openDriver(t, server.Addr())
	direct := dialRedis(t, server.Addr())
	submitClaim(t, d, "k", 5001, ttl, driver.Held)
	seedWaiters(t, direct, "k", 1, 1, time.Hour, "dlock:nobody") // alive at the head
	seedWaiters(t, direct, "k", 2, dead, -time.Second, "dlock:nobody")
	for n := range 300 {
		submitClaim(t, d, "k", 6000+n, ttl, driver.Queued)
	}
	n := direct.ZCard(t.Context(), queueOf("k")).Val()
	if n > 1024+300 || n != direct.HLen(t.Context(), waitersOf("k")).Val() {
		t.Errorf("after 300 newcomers %d of %d dead waiters and newcomers are left", n, dead+300)
	}
}

// The first eight waiters, not only the first, ask again after a third of their heartbeat: the waiters before them may
// be dead. Those behind them do not ask.
func TestFirstEightWaitersRecheck(t *testing.T) {
	t.Parallel()
	hazardtest.Within(t, place, firstEightWaitersRecheck)
}

func firstEightWaitersRecheck(t testing.TB) {
	t.Helper()
	const ttl = 30 * time.Second
	server := testenv.Redis(t)
	d := openDriver(t, server.Addr())
	submitClaim(t, d, "k", 1, ttl, driver.Held)
	for n := range 9 {
		submitClaim(t, d, "k", 2+n, ttl, driver.Queued)
	}
	for n := range 9 {
		st := renewClaim(t, d, "k", 2+n, ttl)
		if st.Phase != driver.Queued || st.Ahead != n+1 {
			t.Errorf("waiter %d is %v behind %d", n, st.Phase, st.Ahead)
		}
		want := driver.Heartbeat(ttl) / 3 // the lease is longer
		if n == 8 {
			want = 0
		}
		if st.Recheck != want {
			t.Errorf("waiter %d asks again in %v, want %v", n, st.Recheck, want)
		}
	}
}

// Inspect reads a long queue in pages, in order and without gaps.
func TestInspectALongQueue(t *testing.T) {
	t.Parallel()
	const waiting = 1200
	server := testenv.Redis(t)
	d := openDriver(t, server.Addr())
	direct := dialRedis(t, server.Addr())
	submitClaim(t, d, "k", waiting+1, 30*time.Second, driver.Held)
	seedWaiters(t, direct, "k", 1, waiting, time.Hour, "dlock:nobody")
	claims, err := d.(driver.Admin).Inspect(t.Context(), "k")
	check(t, err)
	if len(claims) != waiting+1 || claims[0].Phase != driver.Held {
		t.Fatalf("%d claims are shown", len(claims))
	}
	for i, c := range claims[1:] {
		if c.Phase != driver.Queued || c.ID != claimID(i+1) {
			t.Fatalf("place %d shows %v", i, c)
		}
	}
}

// A living waiter behind many dead ones is served. Under stress there are 100,000 of them, and no
// script takes 5 ms.
func TestLivingBehindManyDead(t *testing.T) {
	dead, stress := 5_000, os.Getenv("DLOCK_STRESS") == "1"
	if stress {
		dead = 100_000 - 1
	}
	server := testenv.Redis(t)
	d := openDriver(t, server.Addr())
	direct := deadQueue(t, server, d, dead)
	living := startWait(t, locksAt(t, server.Addr()), "k", dlock.WithTTL(10*time.Second))
	check(t, direct.ConfigSet(t.Context(), "slowlog-log-slower-than", "5000").Err())
	check(t, direct.Do(t.Context(), "SLOWLOG", "RESET").Err())
	began := time.Now()
	releaseClaim(t, d, "k", dead+1, 30*time.Second)
	unlock(t, granted(t, living, 30*time.Second).guard)
	t.Logf("the living waiter was served after %v", time.Since(began))
	for _, e := range direct.SlowLogGet(t.Context(), 100).Val() {
		if !stress {
			break // the machine may be busy
		}
		t.Errorf("the server did nothing else for %v: %s", e.Duration, e.Args[0])
	}
}

// A renewal that removes dead waiters does not count them as ahead.
func TestRenewalCountsTheLivingAhead(t *testing.T) {
	t.Parallel()
	server := testenv.Redis(t)
	d, direct := openDriver(t, server.Addr()), directTo(t, server)
	submitClaim(t, d, "k", 1, time.Hour, driver.Held)
	seedWaiters(t, direct, "k", 2, 6, -time.Second, "dlock:0123456789abcdef")
	seedWaiters(t, direct, "k", 7, 8, time.Hour, "dlock:0123456789abcdef")
	if st := renewClaim(t, d, "k", 8, time.Hour); st.Phase != driver.Queued || st.Ahead != 2 { // the holder and claim 7
		t.Errorf("%+v", st)
	}
}
