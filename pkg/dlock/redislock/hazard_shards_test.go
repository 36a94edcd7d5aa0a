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

// One master of three stalls repeatedly. Meanwhile a Client that waits for it takes locks on the
// others as often as between the stalls, and loses none that it holds there. The Client is its own
// control at another time: a concurrent control would be slowed down by the same load.
func TestStalledMasterSparesTheOthers(t *testing.T) {
	for _, deadlines := range []bool{true, false} {
		t.Run(fmt.Sprint("ContextTimeoutEnabled=", deadlines), func(t *testing.T) {
			cl := testenv.Cluster(t)
			tolerateStalls(t, cl)
			rdb := redis.NewClusterClient(&redis.ClusterOptions{Addrs: cl.Addrs(), ContextTimeoutEnabled: deadlines})
			t.Cleanup(func() { _ = rdb.Close() })
			c := locksOn(t, redislock.New(rdb), dlock.Config{DefaultTTL: 6 * time.Second})
			stalled := cl.Nodes()[0]
			far, near := keysOn(t, cl, 8, stalled), keysOn(t, cl, 8, cl.Nodes()[1:]...)
			var held []*dlock.Guard
			for _, key := range near {
				held = append(held, acquire(t, c, key+" held"))
				unlock(t, acquire(t, c, key)) // connections and scripts
			}
			span := testenv.UnderStress(300*time.Millisecond, 2*time.Second)
			var shares []float64
			for range 7 {
				for _, key := range far { // what was left of the stall before has ended
					unlock(t, acquire(t, c, key))
				}
				usual := pairsWithin(t, c, near, span)
				check(t, stalled.Pause())
				stop := callInVain(t, c, far, 8)
				got := pairsWithin(t, c, near, span)
				stop()
				check(t, stalled.Resume())
				t.Logf("%d pairs on two masters in %v, %d while the third stalls", usual, span, got)
				shares = append(shares, float64(got)/float64(usual))
			}
			for _, g := range held {
				alive(t, g)
			}
			slices.Sort(shares)
			if least := testenv.UnderStress(0.5, 0.9); shares[len(shares)/2] < least {
				t.Errorf("%.2f as many pairs on the other masters while one stalls, want %.1f", shares, least)
			}
		})
	}
}

// tolerateStalls makes the nodes of a cluster continue when one does not answer for a while.
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

// callInVain lets callers try to acquire each of the keys until stop is called.
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
