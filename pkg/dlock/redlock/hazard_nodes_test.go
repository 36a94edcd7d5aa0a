package redlock_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/redlock"
)

// A room counts the holders inside at the same time. It counts a holder only while its lock is
// valid: a machine that stalls may not let a holder out whose lock has ended.
type room struct {
	overlaps, entries atomic.Int64
	mu                sync.Mutex
	inside            map[*dlock.Guard]bool
}

// stay holds a lock inside the room for a while, or until it is lost.
func (r *room) stay(g *dlock.Guard, most time.Duration) {
	r.mu.Lock()
	for other := range r.inside {
		if other.Remaining() > 0 {
			r.overlaps.Add(1)
		}
	}
	if r.inside == nil {
		r.inside = map[*dlock.Guard]bool{}
	}
	r.inside[g] = true
	r.mu.Unlock()
	r.entries.Add(1)
	select {
	case <-g.Done():
	case <-time.After(most):
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.inside, g)
}

// Single nodes come back empty, at least two leases apart and while all nodes have the lock: no
// other claim ever gets in, no lock is lost, and no caller sees an error.
func TestEmptyNodesAdmitNoOther(t *testing.T) {
	for _, n := range []int{3, 5} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			t.Parallel()
			s := start(t, n)
			const ttl = 6 * time.Second // an unlock has a third of it
			var r room
			metronome := testenv.StartMetronome(t)
			ctx, cancel := context.WithCancel(t.Context())
			var wg sync.WaitGroup
			for range 3 {
				c := s.locks(t, dlock.Config{DefaultTTL: ttl})
				wg.Go(func() {
					for ctx.Err() == nil {
						g, err := c.Acquire(ctx, "k")
						if err != nil && ctx.Err() == nil {
							t.Errorf("acquire: %v", err)
						}
						if err != nil {
							continue
						}
						r.stay(g, 2*ttl)
						left := time.Now()
						err = g.Unlock(context.Background())
						if err != nil && !isStarved(metronome, err, left, ttl) {
							t.Errorf("unlock: %v", err)
						}
					}
				})
			}
			for range testenv.UnderStress(2, 100) {
				testenv.Eventually(t, patience, "all nodes have one lock", func() bool { return s.isOnAll(t, "k") })
				check(t, s.servers[rand.IntN(n)].Restart(t.Context(), false))
				elapse(2 * ttl)
			}
			cancel()
			wg.Wait()
			if o := r.overlaps.Load(); o > 0 || r.entries.Load() < 2 {
				t.Errorf("%d overlaps in %d entries", o, r.entries.Load())
			}
		})
	}
}

// isStarved reports whether an unlock may have failed because the machine did not give the test
// time: to renew within the lease before, or to unlock. The nodes' state of a lock does not depend
// on the machine.
func isStarved(metronome *testenv.Metronome, err error, unlocked time.Time, ttl time.Duration) bool {
	since, text := unlocked, err.Error()
	if strings.Contains(text, "not renewed in time") || strings.Contains(text, "unlocked after its lease") {
		since = unlocked.Add(-ttl)
	} else if !errors.Is(err, dlock.ErrUnknownOutcome) {
		return false
	}
	return metronome.Lost(since) > starved
}

// isOnAll reports whether all nodes have the same claim.
func (s *set) isOnAll(tb testing.TB, lock string) bool {
	tb.Helper()
	first := s.stored(tb, 0, lock)
	for i := range s.servers {
		if v := s.stored(tb, i, lock); len(v) < 32 || v[:32] != first[:min(32, len(first))] {
			return false
		}
	}
	return true
}

// Two of five nodes are slow and one is dead. A round that cannot win leaves nothing on a reachable
// node, long before its lease ends, and a round that wins has validity left. The slow nodes take
// longer than a round waits for them, but less than cleanup does; a node that is even slower counts
// as dead.
func TestSlowNodesKeepNothing(t *testing.T) {
	t.Parallel()
	s := start(t, 5)
	const ttl, slowly = 8 * time.Second, 1200 * time.Millisecond // there, and back
	d, err := redlock.New(s.clients, redlock.WithNodeTimeout(ample)).Open(driver.Options{Logger: quietLog})
	check(t, err)
	defer func() { _ = d.Close() }()
	s.proxies[4].BlackHole(true)
	won, lost := 0, 0
	for i := range testenv.UnderStress(4, 100) {
		delay := slowly
		if i%2 == 1 {
			delay = time.Duration(rand.Int64N(int64(slowly / 50)))
		}
		for _, p := range s.proxies[2:4] {
			p.Delay(delay, delay)
		}
		ref := driver.Ref{Key: "k", ID: fmt.Sprintf("%032x", i), TTL: ttl}
		st, err := d.Acquire(t.Context(), driver.Request{Ref: ref})
		switch {
		case err == nil && st.Phase == driver.Held:
			won++
			if left := time.Until(st.Until); left <= 0 {
				t.Errorf("won with %v left", left)
			}
			if n := s.keepUntil(t, "k", st.Until); n < 3 {
				t.Errorf("only %d nodes keep it until it is said to end", n)
			}
		case err == nil && st.Phase != driver.Gone, errors.Is(err, context.Canceled):
			t.Fatalf("%v, %v", st, err)
		default:
			lost++
		}
		if err == nil && st.Phase == driver.Held {
			_, err := d.Release(t.Context(), ref)
			check(t, err)
		}
		within, began := 2*delay+testenv.UnderStress(4500*time.Millisecond, 1500*time.Millisecond), time.Now()
		testenv.Eventually(t, patience, "nothing is left", func() bool { return s.holders(t, "k") == 0 })
		if took := time.Since(began); took > within && !testenv.Stalled(t, began, within) {
			t.Errorf("nothing was left only after %v, want within %v", took, within)
		}
	}
	if won == 0 || lost == 0 {
		t.Errorf("won %d, lost %d: one of the two was not tried", won, lost)
	}
}

// keepUntil returns how many nodes keep a lock at least until a time.
func (s *set) keepUntil(tb testing.TB, lock string, until time.Time) (n int) {
	tb.Helper()
	for _, c := range s.direct {
		left, err := c.PTTL(context.Background(), lock).Result()
		check(tb, err)
		if left > 0 && !time.Now().Add(left+time.Millisecond).Before(until) {
			n++
		}
	}
	return n
}

// Modes that are counted on each node do not add up over nodes.
func TestOnlyExclusiveLocks(t *testing.T) {
	s := start(t, 3)
	d, err := redlock.New(s.clients).Open(driver.Options{Logger: quietLog})
	check(t, err)
	defer func() { _ = d.Close() }()
	for _, r := range []driver.Request{{Mode: driver.Shared}, {Mode: driver.Permit, Limit: 2}, {Tokens: 2}} {
		r.Ref = driver.Ref{Key: "k", ID: fmt.Sprintf("%032x", 1), TTL: time.Second}
		_, err := d.Acquire(t.Context(), r)
		want(t, err, driver.ErrUnsupported)
	}
	if left := s.left(t); len(left) > 0 {
		t.Errorf("stored %q", left)
	}
}
