package redislock_test

import (
	"context"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ceyewan/genesis/internal/hazardtest"
	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/clog"
	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/redislock"
)

// A grant is stored before it is published, and published once, to the claim that has it. Waiters
// that are passed over receive no message.
func TestGrantIsStoredBeforeItIsPublished(t *testing.T) {
	t.Parallel()
	hazardtest.Within(t, place, grantIsStoredBeforeItIsPublished)
}

func grantIsStoredBeforeItIsPublished(t testing.TB) {
	t.Helper()
	const ttl = 30 * time.Second
	server := testenv.Redis(t)
	direct, d := dialRedis(t, server.Addr()), openDriver(t, server.Addr())
	m := testenv.MonitorRedis(t, server)
	submitClaim(t, d, "k", 1, ttl, driver.Held)
	submitWaiters(t, d, direct, "k", ttl, 2, 3)
	releaseClaim(t, d, "k", 1, ttl) // to one that listens
	seedWaiters(t, direct, "k", 100, 102, time.Second, "dlock:nobody")
	releaseClaim(t, d, "k", 2, ttl) // over three that do not listen
	if got := holderID(t, direct, "k"); got != claimID(3) {
		t.Errorf("%q holds the lock", got)
	}
	stored, told := "", 0
	for _, s := range m.Commands(t) {
		switch {
		case s.Lua && strings.EqualFold(s.Args[0], "SET") && s.Args[1] == "k":
			stored = s.Args[2]
		case s.Lua && strings.EqualFold(s.Args[0], "PUBLISH"):
			told++
			part := strings.Split(s.Args[2], "\x01")
			if part[0] != "held" || !strings.HasPrefix(strings.Replace(stored, "+", ".", 1), part[2]+". "+part[3]+" ") {
				t.Errorf("%q was told while %q was stored", part, stored)
			}
		}
	}
	if told != 2 {
		t.Errorf("two grants were told %d times", told)
	}
}

// A waiter whose channel has no subscriber is passed over until it has renewed, and keeps its
// place. Its renewal updates its channel.
func TestUnheardWaiterIsPassedOverOnce(t *testing.T) {
	t.Parallel()
	hazardtest.Within(t, place, unheardWaiterIsPassedOverOnce)
}

func unheardWaiterIsPassedOverOnce(t testing.TB) {
	t.Helper()
	const ttl = 30 * time.Second
	server := testenv.Redis(t)
	direct, d := dialRedis(t, server.Addr()), openDriver(t, server.Addr())
	submitClaim(t, d, "k", 1, ttl, driver.Held)
	submitWaiters(t, d, direct, "k", ttl, 2, 3, 4, 5)
	unheard := func() {
		record := strings.Fields(direct.HGet(t.Context(), waitersOf("k"), claimID(2)).Val())
		record[4] = "dlock:nobody"
		check(t, direct.HSet(t.Context(), waitersOf("k"), claimID(2), strings.Join(record, " ")).Err())
	}
	holds := func(n int) {
		t.Helper()
		if got := holderID(t, direct, "k"); got != claimID(n) {
			t.Fatalf("%q holds the lock, want claim %d", got, n)
		}
	}
	unheard()
	releaseClaim(t, d, "k", 1, ttl)
	holds(3)
	releaseClaim(t, d, "k", 3, ttl)
	holds(4) // it may be dead: it has not renewed
	if st := renewClaim(t, d, "k", 2, ttl); st.Phase != driver.Queued || st.Ahead != 1 {
		t.Errorf("passed over, it is %v behind %d", st.Phase, st.Ahead)
	}
	record := strings.Fields(direct.HGet(t.Context(), waitersOf("k"), claimID(2)).Val())
	if !strings.HasPrefix(record[4], "dlock:") || record[4] == "dlock:nobody" || record[3] != "2" {
		t.Errorf("after its renewal it has skipped = %s and channel %s", record[3], record[4])
	}
	unheard()
	releaseClaim(t, d, "k", 4, ttl)
	holds(2)
}

// A renewal reports "unsubscribed" to a process that considers itself subscribed but is not.
func TestRenewalSaysUnheard(t *testing.T) {
	t.Parallel()
	hazardtest.Within(t, place, renewalSaysUnheard)
}

func renewalSaysUnheard(t testing.TB) {
	t.Helper()
	const ttl = 30 * time.Second
	server := testenv.Redis(t)
	direct, d := dialRedis(t, server.Addr()), openDriver(t, server.Addr())
	submitClaim(t, d, "k", 1, ttl, driver.Held)
	submitWaiters(t, d, direct, "k", ttl, 2)
	heard := strings.Fields(direct.HGet(t.Context(), waitersOf("k"), claimID(2)).Val())[4]
	keys, _ := redislock.Keys("", "k")
	for channel, want := range map[string]bool{"dlock:nobody": true, "-": false, heard: false} {
		for _, source := range redislock.Scripts("renew") {
			if !strings.Contains(source, "' unsubscribed'") {
				continue // it renews what is held
			}
			reply, err := direct.Eval(t.Context(), source, keys[:4], "echo", channel, claimID(2), "30000", "3000").StringSlice()
			if err != nil || len(reply) != 2 || strings.HasSuffix(reply[1], " unsubscribed") != want {
				t.Errorf("%s: %q, %v", channel, reply, err)
			}
		}
	}
}

// Without any subscriber, the first living waiter is granted the lock.
func TestGrantsWithoutSubscribers(t *testing.T) {
	t.Parallel()
	const ttl = 30 * time.Second
	server := testenv.Redis(t)
	direct, d := dialRedis(t, server.Addr()), openDriver(t, server.Addr())
	for name, waiting := range map[string]int{"few": 3, "many": 100} {
		submitClaim(t, d, name, 1, ttl, driver.Held)
		seedWaiters(t, direct, name, 100, 100, -time.Second, "dlock:nobody")
		seedWaiters(t, direct, name, 101, 100+waiting, time.Hour, "dlock:nobody")
		releaseClaim(t, d, name, 1, ttl)
		if got := holderID(t, direct, name); got != claimID(101) {
			t.Errorf("%s: %q holds the lock", name, got)
		}
	}
}

// A waiter whose user may not use channels is served in its turn, next to others that receive
// pushes, and the log tells the operator why that is slow.
func TestWaiterWithoutChannelRights(t *testing.T) {
	t.Parallel()
	server := testenv.Redis(t)
	check(t, dialRedis(t, server.Addr()).Do(t.Context(), "ACL", "SETUSER", "deaf", "on", ">x", "~*", "resetchannels", "+@all").Err())
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr(), Username: "deaf", Password: "x", ContextTimeoutEnabled: true})
	defer rdb.Close()
	var log textBuffer
	deaf := locksOn(t, redislock.New(rdb), dlock.Config{}, dlock.WithLogger(clog.FromSlog(slog.New(slog.NewTextHandler(&log, nil)))))
	ctx, stop := context.WithCancel(t.Context())
	var served atomic.Int64
	var wg sync.WaitGroup
	for range 3 {
		c := locksAt(t, server.Addr())
		wg.Go(func() {
			for ctx.Err() == nil {
				g, err := c.Acquire(ctx, "k")
				if err == nil {
					served.Add(1)
					elapse(time.Millisecond) // so that the others always wait
					_ = g.Unlock(context.WithoutCancel(ctx))
				}
			}
		})
	}
	defer wg.Wait()
	defer stop()
	testenv.Eventually(t, time.Minute, "the others are served", func() bool { return served.Load() > 10 })
	for range 2 {
		wait, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		g, err := deaf.Acquire(wait, "k")
		cancel()
		if err != nil {
			t.Fatalf("not served while the others were %d times: %v", served.Load(), err)
		}
		unlock(t, g)
	}
	if text := log.String(); !strings.Contains(text, "level=WARN") || !strings.Contains(text, "&dlock:*") {
		t.Errorf("the log has no warning with a cure: %s", text)
	}
}

// A clock that was set back leaves deadlines far ahead. A dead waiter with such a deadline does not
// keep the lock for longer than a heartbeat.
func TestDeadlineFarAheadIsClamped(t *testing.T) {
	t.Parallel()
	hazardtest.Within(t, place, deadlineFarAheadIsClamped)
}

func deadlineFarAheadIsClamped(t testing.TB) {
	t.Helper()
	const ttl, longest = 30 * time.Second, 3 * time.Second
	server := testenv.Redis(t)
	direct, d := dialRedis(t, server.Addr()), openDriver(t, server.Addr())
	clock := func() int64 {
		now, err := direct.Time(t.Context()).Result()
		check(t, err)
		return now.UnixMicro()
	}
	for _, key := range []string{"granted", "renewed"} {
		submitClaim(t, d, key, 1, ttl, driver.Held)
		submitClaim(t, d, key, 2, ttl, driver.Queued)
		seedWaiters(t, direct, key, 3, 4, time.Hour, "dlock:nobody")
		if key == "granted" {
			releaseClaim(t, d, key, 2, ttl)
			releaseClaim(t, d, key, 1, ttl)
			if left := direct.PTTL(t.Context(), key).Val(); left <= 0 || left > longest {
				t.Errorf("a dead waiter was granted the lock for %v", left)
			}
		} else {
			renewClaim(t, d, key, 2, ttl)
		}
		word, _, _ := strings.Cut(direct.HGet(t.Context(), waitersOf(key), claimID(4)).Val(), " ")
		deadline, err := strconv.ParseInt(word, 10, 64)
		if err != nil || deadline > clock()+longest.Microseconds() {
			t.Errorf("%s: the deadline of a waiter is %q", key, word)
		}
	}
}

// After the clock was set back, newcomers are placed behind the waiters.
func TestOrderAfterTheClockWasSetBack(t *testing.T) {
	t.Parallel()
	hazardtest.Within(t, place, orderAfterTheClockWasSetBack)
}

func orderAfterTheClockWasSetBack(t testing.TB) {
	t.Helper()
	const ttl = 30 * time.Second
	server := testenv.Redis(t)
	direct := dialRedis(t, server.Addr())
	for key, d := range map[string]driver.Driver{
		"usual": openDriver(t, server.Addr()), "general": openDriver(t, server.Addr(), redislock.WithPlainClients(time.Millisecond)),
	} {
		submitClaim(t, d, key, 1, ttl, driver.Held)
		var want []string
		for n := range 4 {
			want = append(want, claimID(10-n)) // equal arrivals would be swapped
			submitClaim(t, d, key, 10-n, ttl, driver.Queued)
			if n == 0 { // what its arrival looks like after the clock was set back by an hour
				check(t, direct.ZIncrBy(t.Context(), queueOf(key), 3600e6, claimID(10)).Err())
			}
		}
		if got := direct.ZRange(t.Context(), queueOf(key), 0, -1).Val(); !slices.Equal(got, want) {
			t.Errorf("%s: the order is %v, want %v", key, got, want)
		}
	}
}
