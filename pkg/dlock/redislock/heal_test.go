package redislock_test

import (
	"testing"
	"time"

	"github.com/ceyewan/genesis/internal/hazardtest"
	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// If either half of the queue is deleted or evicted, its waiters are served within two heartbeats:
// a waiter that still has its record is queued again, and the others are notified to submit again.
func TestLostHalvesOfAQueue(t *testing.T) {
	t.Parallel()
	for name, lost := range map[string][]string{
		"queue": {queueOf("k")}, "records": {waitersOf("k")}, "both": {queueOf("k"), waitersOf("k")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const ttl, heartbeat = 30 * time.Second, 3 * time.Second
			server := testenv.Redis(t)
			g := acquire(t, locksAt(t, server.Addr()), "k", dlock.WithTTL(ttl))
			served := make(chan outcome, 3)
			for range 3 {
				got := startWait(t, locksAt(t, server.Addr()), "k", dlock.WithTTL(ttl))
				go func() {
					one := <-got
					if one.err == nil {
						one.err = tryUnlock(t, one.guard)
					}
					served <- one
				}()
			}
			if n := dialRedis(t, server.Addr()).Del(t.Context(), lost...).Val(); n != int64(len(lost)) {
				t.Fatalf("%d keys were deleted", n)
			}
			unlock(t, g)
			timeout := time.After(testenv.UnderStress(25*time.Second, 2*heartbeat))
			for i := range 3 {
				select {
				case one := <-served:
					check(t, one.err)
				case <-timeout:
					t.Fatalf("%d of 3 waiters were served within two heartbeats", i)
				}
			}
		})
	}
}

// Waiters whose queue was deleted return to their places.
func TestLostQueueKeepsItsOrder(t *testing.T) {
	t.Parallel()
	hazardtest.Within(t, place, lostQueueKeepsItsOrder)
}

func lostQueueKeepsItsOrder(t testing.TB) {
	t.Helper()
	const ttl = 30 * time.Second
	server := testenv.Redis(t)
	direct, d := dialRedis(t, server.Addr()), openDriver(t, server.Addr())
	submitClaim(t, d, "k", 1, ttl, driver.Held)
	for i := range 4 {
		submitClaim(t, d, "k", 2+i, ttl, driver.Queued)
	}
	want := direct.ZRange(t.Context(), queueOf("k"), 0, -1).Val()
	check(t, direct.Del(t.Context(), queueOf("k")).Err())
	for _, n := range []int{4, 2, 5, 3} {
		if st := renewClaim(t, d, "k", n, ttl); st.Phase != driver.Queued {
			t.Errorf("claim %d is %v", n, st.Phase)
		}
	}
	got := direct.ZRange(t.Context(), queueOf("k"), 0, -1).Val()
	if len(want) != 4 || len(got) != 4 {
		t.Fatalf("%d waited, then %d", len(want), len(got))
	}
	for i := range got {
		if got[i] != want[i] {
			t.Errorf("place %d has changed", i)
		}
	}
	if direct.PTTL(t.Context(), queueOf("k")).Val() <= 0 {
		t.Error("the queue would stay forever")
	}
}

// A place without a record is removed, and its claim is notified.
func TestPlaceWithoutARecord(t *testing.T) {
	t.Parallel()
	hazardtest.Within(t, place, placeWithoutARecord)
}

func placeWithoutARecord(t testing.TB) {
	t.Helper()
	const ttl = 30 * time.Second
	server := testenv.Redis(t)
	direct, d := dialRedis(t, server.Addr()), openDriver(t, server.Addr())
	submitClaim(t, d, "k", 1, ttl, driver.Held)
	submitClaim(t, d, "k", 2, ttl, driver.Queued)
	check(t, direct.Del(t.Context(), waitersOf("k")).Err())
	if st := renewClaim(t, d, "k", 2, ttl); st.Phase != driver.Gone {
		t.Errorf("a waiter without a record is %v", st.Phase)
	}
	if n := direct.ZCard(t.Context(), queueOf("k")).Val(); n != 0 {
		t.Errorf("%d places are left", n)
	}
}

// Records that a new waiter stores after they were deleted expire, although the queue is not new.
func TestLostRecordsExpire(t *testing.T) {
	t.Parallel()
	const ttl = 30 * time.Second
	server := testenv.Redis(t)
	direct, d := dialRedis(t, server.Addr()), openDriver(t, server.Addr())
	testenv.Eventually(t, time.Minute, "a second in which new waiters do not extend a queue", func() bool {
		second := direct.Time(t.Context()).Val().Unix() % 16
		return second > 0 && second < 12
	})
	submitClaim(t, d, "k", 1, ttl, driver.Held)
	submitClaim(t, d, "k", 2, ttl, driver.Queued)
	check(t, direct.Del(t.Context(), waitersOf("k")).Err())
	submitClaim(t, d, "k", 3, ttl, driver.Queued)
	for _, key := range []string{queueOf("k"), waitersOf("k")} {
		if direct.PTTL(t.Context(), key).Val() <= 0 {
			t.Errorf("%q would stay forever", key)
		}
	}
}
