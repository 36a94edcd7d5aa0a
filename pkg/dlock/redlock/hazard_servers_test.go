package redlock_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ceyewan/genesis/internal/faultproxy"
	"github.com/ceyewan/genesis/internal/hazardtest"
	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/redlock"
)

// All nodes forget their scripts before every call: no caller sees an error.
func TestFlushedScriptsAreLoadedAgain(t *testing.T) {
	t.Parallel()
	s := start(t, 3)
	c, other := s.locks(t, dlock.Config{DefaultTTL: time.Minute}), s.locks(t, dlock.Config{DefaultTTL: time.Minute})
	flush := func() {
		t.Helper()
		for _, d := range s.direct {
			check(t, d.ScriptFlush(t.Context()).Err())
		}
	}
	// A node that one call does not reach gets the lock by another script, or with the next renewal.
	const majority, all = 2, 3
	for range testenv.UnderStress(5, 100) {
		flush()
		g := acquire(t, c, "k")
		s.loaded(t, "acquire", all)
		for _, d := range s.direct { // so that the next proposal is refused
			check(t, d.Set(t.Context(), fenceOf("refused"), time.Now().Add(time.Hour).UnixMicro(), time.Minute).Err())
		}
		flush()
		unlock(t, acquire(t, c, "refused"))
		s.loaded(t, "confirm", majority)
		flush()
		check(t, g.Extend(t.Context(), 2*time.Minute))
		s.loaded(t, "renew", majority)
		flush()
		done := make(chan error, 1)
		go func() { done <- other.Lock(t.Context(), "k") }()
		s.loaded(t, "acquire", all)
		flush()
		unlock(t, g)
		s.loaded(t, "release", all)
		check(t, <-done)
		flush()
		unlockKey(t, other, "k")
		soon(t, "nothing is left", func() bool { return len(s.left(t)) == 0 })
	}
}

// The password is wrong on all nodes, or on one: the first case fails at once with its cause, the
// second costs nothing, and neither keeps opening connections.
func TestWrongPassword(t *testing.T) {
	t.Parallel()
	for name, wrong := range map[string]int{"Everywhere": 3, "OnOneNode": 1} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := start(t, 3)
			var clients []redis.UniversalClient
			for i, p := range s.proxies {
				check(t, s.direct[i].Do(t.Context(), "ACL", "SETUSER", "locks", "on", ">secret", "~*", "&*", "+@all").Err())
				o := &redis.Options{Addr: p.Addr(), Username: "locks", Password: "secret", ContextTimeoutEnabled: true}
				if i < wrong {
					o.Password = "guess"
				}
				c := redis.NewClient(o)
				defer c.Close()
				clients = append(clients, c)
			}
			c := locksOn(t, clients, dlock.Config{DefaultTTL: 30 * time.Second, RenewInterval: 2 * time.Second}, patient) // no stall ends the lease
			if wrong < 2 {
				g := acquire(t, c, "k")
				elapse(testenv.UnderStress(6*time.Second, 20*time.Second)) // renewals try the node again
				left := g.Remaining()
				testenv.Eventually(t, time.Minute, "it is renewed", func() bool {
					before := left
					left = g.Remaining()
					return left > before+time.Second
				})
				unlock(t, g)
			} else {
				for range 5 {
					_, err := c.Acquire(t.Context(), "k")
					want(t, err, dlock.ErrDenied)
				}
				_, err := c.Check(t.Context())
				want(t, err, dlock.ErrDenied)
				elapse(2 * time.Second) // whatever is tried in the background
			}
			for i, p := range s.proxies[:wrong] {
				n := p.Connections()
				t.Logf("node %d: %d connections", i, n)
				if n == 0 || n > 40 {
					t.Errorf("node %d was connected to %d times", i, n)
				}
			}
		})
	}
}

// Nothing is sent for locks that were unlocked, although they were renewed before, and nothing is
// stored again.
func TestRenewalEndsWithUnlock(t *testing.T) {
	t.Parallel()
	s := start(t, 3)
	var calls, renewals atomic.Int64
	s.intercept(func(_ int, cmd []string) faultproxy.Action {
		if len(cmd) > 1 && cmd[0] == "EVALSHA" && cmd[1] != redlock.Scripts["release"] {
			calls.Add(1)
			if cmd[1] == redlock.Scripts["renew"] {
				renewals.Add(1)
			}
		}
		return faultproxy.Forward
	})
	const ttl, locks = 6 * time.Second, 10 // an unlock has a third of it
	metronome := testenv.StartMetronome(t)
	c := s.locks(t, dlock.Config{DefaultTTL: ttl})
	var wg sync.WaitGroup
	for i := range locks {
		wg.Go(func() {
			for range testenv.UnderStress(2, 20) {
				asked := time.Now()
				g, err := c.Acquire(t.Context(), string(rune('a'+i)))
				if err != nil {
					t.Error(err)
					return
				}
				elapse(ttl / 3 * time.Duration(2*locks+i) / (2 * locks)) // about when it is renewed
				began := time.Now()
				err = g.Unlock(t.Context())
				isLate := errors.Is(err, dlock.ErrOwnershipLost) && time.Since(asked) > ttl-ttl/10 // which leaves a stall of half a lease
				if err != nil && (!isLate || !metronome.MayMiss(asked, ttl, ttl/3)) && !hazardtest.GaveUp(t, err, began) {
					t.Errorf("after %v: %v", time.Since(asked), err)
				}
			}
		})
	}
	wg.Wait()
	if renewals.Load() == 0 {
		t.Error("nothing was renewed: the scenario does not bite")
	}
	soon(t, "nothing is left", func() bool { return len(s.left(t)) == 0 })
	elapse(ttl / 2) // a renewal may have been in flight
	before := calls.Load()
	elapse(2 * ttl)
	if n := calls.Load() - before; n > 0 {
		t.Errorf("%d calls after all is unlocked", n)
	}
	if left := s.left(t); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
}

// A TTL is stored unchanged, or refused before anything is sent.
func TestTTLIsKeptOrRefused(t *testing.T) {
	t.Parallel()
	s := start(t, 3)
	var calls atomic.Int64
	s.intercept(func(_ int, cmd []string) faultproxy.Action {
		if (cmd[0] == "EVALSHA" || cmd[0] == "EVAL") && slices.Contains(cmd, "k") { // not those of warm, which may be late
			calls.Add(1)
		}
		return faultproxy.Forward
	})
	c := s.locks(t, dlock.Config{})
	warm(t, c)
	const least, most = 100 * time.Millisecond, 24 * time.Hour
	for _, ttl := range []time.Duration{-1, 1, -5 * time.Second, time.Millisecond, least - 1, most + 1, 1 << 62, -1 << 63} {
		soon(t, "nothing is left", func() bool { return len(s.left(t)) == 0 })
		before := calls.Load()
		_, err := c.TryAcquire(t.Context(), "k", dlock.WithTTL(ttl))
		want(t, err, dlock.ErrInvalidTTL)
		if n := calls.Load() - before; n > 0 || len(s.left(t)) > 0 {
			t.Errorf("TTL %v: refused after %d calls, %q is stored", ttl, n, s.left(t))
		}
	}
	for _, ttl := range []time.Duration{10*time.Second + 1, 12345*time.Millisecond + 678*time.Microsecond, time.Minute, time.Hour, most - 1, most} {
		asked := time.Now()
		g := acquire(t, c, "k", dlock.WithTTL(ttl), dlock.WithoutRenewal())
		if left := g.Remaining(); left > ttl {
			t.Errorf("TTL %v: the guard believes in %v", ttl, left)
		}
		testenv.Eventually(t, patience, "all nodes have it", func() bool { return s.holders(t, "k") == 3 })
		for i, d := range s.direct {
			left, err := d.PTTL(context.Background(), "k").Result()
			check(t, err)
			if took := time.Since(asked); left > ttl+time.Millisecond || left < ttl*98/100-took {
				t.Errorf("TTL %v: node %d has %v left after %v", ttl, i, left, took)
			}
		}
		unlock(t, g)
		soon(t, "nothing is left", func() bool { return len(s.left(t)) == 0 })
	}
}

// heartbeat is how long a waiter lives without a renewal.
const heartbeat = 3 * time.Second

// mayMiss reports whether the machine may be why a waiter has missed a heartbeat since then: it renews three times in that time.
func mayMiss(t *testing.T, since time.Time) bool {
	t.Helper()
	return testenv.StartMetronome(t).MayMiss(since.Add(-heartbeat), heartbeat, heartbeat/3)
}

// Waiters of several Clients wait for many heartbeats: each keeps its place, and all are served.
func TestPatientWaitersAreServed(t *testing.T) {
	t.Parallel()
	e := openEnv(t)
	const ttl, waiters = 6 * time.Second, 6
	open := func() *dlock.Client {
		c, err := dlock.New(&dlock.Config{DefaultTTL: ttl}, dlock.WithBackend(e.Direct(t)))
		check(t, err)
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	g := acquire(t, open(), "k", dlock.WithTTL(time.Minute))
	type outcome struct {
		guard *dlock.Guard
		err   error
	}
	served := make(chan outcome, waiters)
	clients := []*dlock.Client{open(), open(), open()}
	for i := range waiters {
		go func() {
			next, err := clients[i%3].Acquire(t.Context(), "k")
			served <- outcome{next, err}
		}()
	}
	shown := func() (ids []string) {
		for _, c := range e.Claims(t, "k") {
			ids = append(ids, c.ID)
		}
		slices.Sort(ids)
		return ids
	}
	testenv.Eventually(t, patience, "all are shown", func() bool { return len(shown()) == waiters+1 })
	for try := 1; ; try++ {
		before, began := shown(), time.Now()
		elapse(testenv.UnderStress[time.Duration](4, 10) * heartbeat)
		after := shown()
		if slices.Equal(before, after) {
			break
		}
		if try == 3 || !mayMiss(t, began) {
			t.Errorf("%q wait, and then %q", before, after)
			break
		}
	}
	select {
	case got := <-served:
		t.Fatalf("a waiter ended: %v", got.err)
	default:
	}
	unlock(t, g)
	for range waiters {
		select {
		case got := <-served:
			check(t, got.err)
			unlock(t, got.guard)
		case <-time.After(patience):
			t.Fatal("a waiter is not served")
		}
	}
}
