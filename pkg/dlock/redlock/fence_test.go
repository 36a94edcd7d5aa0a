package redlock_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock"
)

// Tokens increase while nodes stop and come back with their data. Their counters are
// ahead of their clocks, and of each other, so that the time does not help.
func TestFencesIncreaseThroughRestarts(t *testing.T) {
	s := start(t, 3, "--appendonly", "yes", "--appendfsync", "everysec")
	for i, c := range s.direct {
		ahead := time.Now().Add(time.Duration(i+1) * time.Hour).UnixMicro()
		check(t, c.Set(t.Context(), "{k}\x01f", ahead, 24*time.Hour).Err())
	}
	var mu sync.Mutex
	var last int64
	done, regressions := 0, 0
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var wg sync.WaitGroup
	n := testenv.UnderStress(150, 10_000)
	for range 3 {
		c := s.locks(t, dlock.Config{DefaultTTL: 2 * time.Second, RetryInterval: 5 * time.Millisecond})
		wg.Go(func() {
			for ctx.Err() == nil {
				g, err := c.Acquire(ctx, "k")
				if err != nil {
					continue
				}
				mu.Lock()
				if g.Token() <= last {
					regressions++
				}
				last = g.Token()
				if done++; done == n {
					cancel()
				}
				mu.Unlock()
				_ = g.Unlock(context.Background()) // a node may be down
			}
		})
	}
	restarts := 0
	for ctx.Err() == nil {
		server := s.servers[rand.IntN(3)]
		check(t, server.Kill())
		select {
		case <-ctx.Done():
		case <-time.After(50 * time.Millisecond):
		}
		check(t, server.Restart(t.Context(), true))
		restarts++
		select {
		case <-ctx.Done():
		case <-time.After(200 * time.Millisecond):
		}
	}
	wg.Wait()
	if regressions > 0 || restarts == 0 {
		t.Errorf("%d of %d tokens did not increase, in %d restarts", regressions, done, restarts)
	}
}

// A token counts only when a majority has taken it: whoever meets that majority gets a
// greater one, though the nodes' counters were far apart.
func TestTokenMeetsEveryMajority(t *testing.T) {
	s := start(t, 5)
	last := int64(0)
	c := s.locks(t, dlock.Config{DefaultTTL: 5 * time.Second})
	for round := range testenv.UnderStress(20, 500) {
		down := rand.Perm(5)[:2]
		for _, i := range down {
			s.proxies[i].Refuse(true)
			s.proxies[i].Cut()
		}
		i := rand.IntN(5) // one node is ahead, as after a claim that did not win
		check(t, s.direct[i].Set(t.Context(), "{k}\x01f", fmt.Sprint(time.Now().Add(time.Duration(round)*time.Hour).UnixMicro()), 24*time.Hour).Err())
		g := acquire(t, c, "k")
		if g.Token() <= last {
			t.Fatalf("token %d after %d", g.Token(), last)
		}
		last = g.Token()
		unlock(t, g)
		s.heal()
	}
}
