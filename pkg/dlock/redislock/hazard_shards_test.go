package redislock_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ceyewan/genesis/internal/servers"
	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/redislock"
)

// One master of three stalls. A Client that waits for it takes locks on the others as often as one
// that does not, at the same time, and loses none that it holds there.
func TestStalledMasterSparesTheOthers(t *testing.T) {
	for _, deadlines := range []bool{true, false} {
		t.Run(fmt.Sprint("ContextTimeoutEnabled=", deadlines), func(t *testing.T) {
			cl := testenv.Cluster(t)
			tolerateStalls(t, cl)
			dial := func() *dlock.Client {
				rdb := redis.NewClusterClient(&redis.ClusterOptions{Addrs: cl.Addrs(), ContextTimeoutEnabled: deadlines})
				t.Cleanup(func() { _ = rdb.Close() })
				return locksOn(t, redislock.New(rdb), dlock.Config{DefaultTTL: 3 * time.Second})
			}
			c, control := dial(), dial()
			stalled := cl.Nodes()[0]
			far, near := keysOn(t, cl, 8, stalled), keysOn(t, cl, 8, cl.Nodes()[1:]...)
			var held []*dlock.Guard
			var beside []string
			for _, key := range near {
				held = append(held, acquire(t, c, key+" held"))
				beside = append(beside, key+" control")
			}
			for _, key := range slices.Concat(far, near) { // connections and scripts
				unlock(t, acquire(t, c, key))
				unlock(t, acquire(t, control, key))
			}
			check(t, stalled.Pause())
			defer func() { check(t, stalled.Resume()) }()
			stop := callInVain(t, c, far, 8)
			span := testenv.UnderStress(4*time.Second, 10*time.Second)
			var got, usual int64
			var both sync.WaitGroup
			both.Go(func() { got = pairsWithin(t, c, near, span) })
			both.Go(func() { usual = pairsWithin(t, control, beside, span) })
			both.Wait()
			for _, g := range held {
				alive(t, g)
			}
			stop()
			t.Logf("%d pairs on two masters in %v while the third stalls, %d by a Client that does not need it", got, span, usual)
			if share := testenv.UnderStress(0.5, 0.9); float64(got) < share*float64(usual) {
				t.Errorf("%d pairs on the other masters, less than %.1f of %d", got, share, usual)
			}
		})
	}
}

// tolerateStalls makes the nodes of a cluster go on when one does not answer for a
// while.
func tolerateStalls(t *testing.T, cl *servers.Cluster) {
	t.Helper()
	for _, node := range cl.Nodes() {
		client := dialRedis(t, node.Addr())
		check(t, client.ConfigSet(t.Context(), "cluster-require-full-coverage", "no").Err())
		check(t, client.ConfigSet(t.Context(), "cluster-node-timeout", "60000").Err())
	}
}

// keysOn returns keys that these masters serve.
func keysOn(t *testing.T, cl *servers.Cluster, n int, masters ...*servers.Redis) []string {
	t.Helper()
	var keys []string
	for i := 0; len(keys) < n; i++ {
		key := fmt.Sprintf("{%d}", i) // what is put behind it stays in its slot
		node, err := cl.NodeFor(t.Context(), key)
		check(t, err)
		if slices.Contains(masters, node) {
			keys = append(keys, key)
		}
	}
	return keys
}

// pairsWithin counts how often one caller for each key acquires and releases it.
func pairsWithin(t *testing.T, c *dlock.Client, keys []string, span time.Duration) int64 {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), span+10*time.Second)
	defer cancel()
	var pairs atomic.Int64
	var wg sync.WaitGroup
	end := time.Now().Add(span)
	for _, key := range keys {
		wg.Go(func() {
			for time.Now().Before(end) {
				g, err := c.Acquire(ctx, key)
				if err == nil {
					err = g.Unlock(ctx)
				}
				if err != nil {
					t.Errorf("%q: %v", key, err)
					return
				}
				pairs.Add(1)
			}
		})
	}
	wg.Wait()
	return pairs.Load()
}

// callInVain lets callers ask for each of the keys until stop is called.
func callInVain(t *testing.T, c *dlock.Client, keys []string, callers int) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for _, key := range keys {
		for range callers {
			wg.Go(func() {
				for ctx.Err() == nil {
					_, _ = c.Acquire(ctx, key)
				}
			})
		}
	}
	return func() {
		cancel()
		wg.Wait()
	}
}
