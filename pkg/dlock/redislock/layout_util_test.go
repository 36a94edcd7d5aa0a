package redislock_test

import (
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/redislock"
)

// queueOf and waitersOf are the two halves of a lock's queue.
func queueOf(key string) string {
	keys, _ := redislock.Keys("", key)
	return keys[2]
}

func holdersOf(key string) string {
	keys, _ := redislock.Keys("", key)
	return keys[4]
}

func waitersOf(key string) string {
	keys, _ := redislock.Keys("", key)
	return keys[3]
}

// openDriver opens a driver on its own client. Both are closed when the test ends.
func openDriver(t testing.TB, addr string, opts ...redislock.Option) driver.Driver {
	t.Helper()
	d, err := redislock.New(dialRedis(t, addr), opts...).Open(driver.Options{Logger: slog.New(slog.DiscardHandler)})
	check(t, err)
	t.Cleanup(func() { _ = d.Close() })
	redislock.NeverInline(d)
	return d
}

func claimID(n int) string { return fmt.Sprintf("%032x", n) }

// answered repeats a call of a driver that a busy machine has left without an answer, as the engine does. It repeats no
// call that the server, or the driver itself, has refused, and none that failed before its time had passed.
func answered[T any](t testing.TB, call func() (T, error)) (T, error) {
	t.Helper()
	for {
		began := time.Now()
		result, err := call()
		if !redislock.Unanswered(err) || !testenv.Late(t, began, oneAttempt) {
			return result, err
		}
	}
}

// submitClaim submits a claim and asserts its phase.
func submitClaim(t testing.TB, d driver.Driver, key string, n int, ttl time.Duration, want driver.Phase) driver.State {
	t.Helper()
	r := driver.Request{Ref: driver.Ref{Key: key, ID: claimID(n), TTL: ttl}, Wait: want == driver.Queued}
	st, err := answered(t, func() (driver.State, error) { return d.Acquire(t.Context(), r) })
	if err != nil || st.Phase != want {
		t.Fatalf("claim %d is %v, %v; want %v", n, st.Phase, err, want)
	}
	return st
}

func renewClaim(t testing.TB, d driver.Driver, key string, n int, ttl time.Duration) driver.State {
	t.Helper()
	refs := []driver.Ref{{Key: key, ID: claimID(n), TTL: ttl}}
	states, err := answered(t, func() ([]driver.State, error) { return d.Renew(t.Context(), refs) })
	check(t, err)
	return states[0]
}

// place is how long a waiter that nothing renews keeps its place: see hazardtest.Within.
const place = 3 * time.Second

// awaitChannels waits until the waiters of a lock have channels, to which the server pushes. A first subscription may take
// a busy machine longer than a claim waits for it: the claim is then queued without a channel, and a renewal adds it. A
// Client renews by itself as soon as it is subscribed. A test that uses a driver says how to renew.
func awaitChannels(t testing.TB, direct *redis.Client, key string, renew func()) {
	t.Helper()
	testenv.Eventually(t, time.Minute, "the waiters have channels", func() bool {
		records := direct.HVals(t.Context(), waitersOf(key)).Val()
		if len(records) > 0 && !slices.ContainsFunc(records, func(r string) bool { return !strings.Contains(r, " dlock:") }) {
			return true
		}
		if renew != nil {
			renew()
		}
		return false
	})
}

// submitWaiters submits claims that wait, and returns when each has a channel.
func submitWaiters(t testing.TB, d driver.Driver, direct *redis.Client, key string, ttl time.Duration, claims ...int) {
	t.Helper()
	renewAll := func() {
		for _, n := range claims {
			renewClaim(t, d, key, n, ttl)
		}
	}
	for _, n := range claims {
		submitClaim(t, d, key, n, ttl, driver.Queued)
	}
	awaitChannels(t, direct, key, renewAll)
}

// releaseClaim releases a claim. A repeated release finds nothing, which is acceptable.
func releaseClaim(t testing.TB, d driver.Driver, key string, n int, ttl time.Duration) {
	t.Helper()
	r := driver.Ref{Key: key, ID: claimID(n), TTL: ttl}
	_, err := answered(t, func() (driver.State, error) { return d.Release(t.Context(), r) })
	check(t, err)
}

var seedScript = redis.NewScript(`
local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
for i = ARGV[1], ARGV[2] do
  local id = string.format('%032x', i)
  redis.call('ZADD', KEYS[1], string.format('%.0f', now - 10000000 + i), id)
  redis.call('HSET', KEYS[2], id, string.format('%.0f', now + ARGV[3] * 1000) .. ' ' .. t[1] .. '.0 1 0 ' .. ARGV[4] .. ' {}')
end
return redis.status_reply('OK')`)

// seedWaiters stores waiters first to last whose heartbeats end after left, in the past if it is
// negative. Their channel has no subscriber.
func seedWaiters(t testing.TB, c *redis.Client, key string, first, last int, left time.Duration, channel string) {
	t.Helper()
	for from := first; from <= last; from += 10_000 {
		check(t, seedScript.Run(t.Context(), c, []string{queueOf(key), waitersOf(key)},
			from, min(last, from+9_999), strconv.FormatInt(left.Milliseconds(), 10), channel).Err())
	}
	if value := c.Get(t.Context(), key).Val(); len(value) > 32 && value[32] == '.' {
		check(t, c.SetRange(t.Context(), key, 32, "+").Err()) // as a script does that stores a waiter
	}
}

// holderID returns the claim that the server stores as the holder of a lock.
func holderID(t testing.TB, c *redis.Client, key string) string {
	t.Helper()
	value := c.Get(t.Context(), key).Val()
	return value[:min(len(value), 32)]
}
