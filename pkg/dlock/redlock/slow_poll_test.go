package redlock_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ceyewan/genesis/internal/faultproxy"
	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock"
)

// A key that another program has set has no expiry, or one that is far away. A waiter for it asks
// at a low rate, and still notices within about a second that it is gone.
func TestWaiterNextToForeignKeyPollsSlowly(t *testing.T) {
	t.Parallel()
	const noExpiry = time.Duration(0)
	for _, tc := range []struct {
		name   string
		expiry time.Duration
		nodes  int // of three that have the key
		ttl    time.Duration
	}{
		{name: "no expiry", expiry: noExpiry, nodes: 3},
		{name: "no expiry on a majority", expiry: noExpiry, nodes: 2},
		{name: "expiry is far", expiry: time.Hour, nodes: 3},
		{name: "no expiry and a short TTL", expiry: noExpiry, nodes: 3, ttl: 150 * time.Millisecond},
		{name: "no expiry on a majority and a short TTL", expiry: noExpiry, nodes: 2, ttl: 150 * time.Millisecond},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			s := start(t, 3)
			for _, d := range s.direct[:tc.nodes] {
				check(t, d.Set(t.Context(), "k", "of another program", tc.expiry).Err())
			}
			c := s.locks(t, dlock.Config{DefaultTTL: tc.ttl})
			warm(t, c)
			var rounds atomic.Int64
			s.intercept(func(node int, cmd []string) faultproxy.Action {
				if node == 0 && calls(cmd, "acquire", "k") {
					rounds.Add(1)
				}
				return faultproxy.Forward
			})
			got := make(chan *dlock.Guard, 1)
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			go func() {
				g, err := c.Acquire(ctx, "k")
				if err != nil {
					t.Error(err)
				}
				got <- g
			}()
			testenv.Eventually(t, patience, "the waiter asks, and listens", func() bool { return rounds.Load() > 0 && s.isHeard(t, "k") })
			perSecond := 5.0
			if tc.ttl > 0 {
				// Its nodes have little time. Rounds that a slow machine loses are repeated, at
				// most ten a second; there are twenty heartbeats.
				perSecond = testenv.UnderStress(12.0, 5.0)
			}
			pollsSlowly(t, &rounds, tc.nodes < 3 || tc.ttl > 0, perSecond)
			for _, d := range s.direct {
				check(t, d.Del(t.Context(), "k").Err())
			}
			freed := time.Now()
			if g := <-got; g != nil {
				// The key of another program has no end, or one that is an hour away.
				if took := time.Since(freed); took > testenv.UnderStress(beforeLease, 3*time.Second) {
					t.Errorf("the waiter had the lock %v after it was free", took)
				}
				if err := tryUnlock(t, g); tc.ttl == 0 { // a short lease may be over
					check(t, err)
				}
			}
		})
	}
}

// pollsSlowly asserts that a waiter asks no more often than that, once it has asked for a while, or often without hearing anything.
func pollsSlowly(t *testing.T, rounds *atomic.Int64, onlyAfterMany bool, perSecond float64) {
	t.Helper()
	atFirst := rounds.Load()
	elapse(3 * time.Second) // it may have asked more often at first
	if onlyAfterMany {
		// Twelve rounds in which it hears nothing, however long this machine takes for them.
		testenv.Eventually(t, patience, "it has asked often", func() bool { return rounds.Load()-atFirst > 12 })
	}
	before, began := rounds.Load(), time.Now()
	elapse(3 * time.Second)
	n, span := rounds.Load()-before, time.Since(began)
	if float64(n) > perSecond*span.Seconds() {
		t.Errorf("%d rounds in %v while nothing changed, want at most %v a second", n, span, perSecond)
	}
}

// isHeard reports whether every node has a subscriber to what is told about a lock.
func (s *set) isHeard(t *testing.T, key string) bool {
	t.Helper()
	channel := "dlock:" + key
	for _, d := range s.direct {
		if d.PubSubNumSub(t.Context(), channel).Val()[channel] == 0 {
			return false
		}
	}
	return true
}
