package redislock_test

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/ceyewan/genesis/internal/hazardtest"
	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/connector"
	"github.com/ceyewan/genesis/pkg/dlock"
)

// Blocking commands that a user runs on the connector's client use up its pool. Locks are still
// acquired, renewed and released.
func TestBlockingCommandsSpareTheLocks(t *testing.T) {
	t.Parallel()
	hazardtest.UntilValid(t, lockWithABlockedPool)
}

// lockWithABlockedPool is a round of TestBlockingCommandsSpareTheLocks. It is void if a lock was lost because the machine stalled.
func lockWithABlockedPool(t *testing.T) (valid bool) {
	const pool = 2
	server := testenv.Redis(t)
	conn, err := connector.NewRedis(&connector.RedisConfig{Addr: server.Addr(), PoolSize: pool})
	check(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	ttl := testenv.UnderStress(5*time.Second, 1500*time.Millisecond)
	locks, err := dlock.NewRedis(conn, &dlock.Config{DefaultTTL: ttl})
	check(t, err)
	t.Cleanup(func() { _ = locks.Close() })

	var held []*hazardtest.Hold
	for i := range 20 {
		held = append(held, hazardtest.Keep(t, acquire(t, locks, fmt.Sprint("held ", i)), ttl/3))
	}
	blockPool(t, conn, pool)
	direct := dialRedis(t, server.Addr())
	testenv.Eventually(t, 20*time.Second, "the pool is blocked", func() bool {
		return serverInfo(t, direct, "clients", "blocked_clients") == strconv.Itoa(pool)
	})

	// Several TTLs, during which other locks are acquired and released as well.
	for end := time.Now().Add(testenv.UnderStress(2*ttl, time.Minute)); time.Now().Before(end); {
		ctx, cancel := context.WithTimeout(t.Context(), 10*ttl)
		g, err := locks.Acquire(ctx, "short")
		cancel()
		check(t, err)
		unlock(t, g)
		if slices.ContainsFunc(held, func(h *hazardtest.Hold) bool { return h.Lost(t) }) {
			return false
		}
		elapse(10 * time.Millisecond)
	}
	for _, h := range held {
		unlock(t, h.Guard)
	}
	return true
}

// blockPool runs n blocking commands on the connector's client until the test ends.
func blockPool(t *testing.T, conn *connector.Redis, n int) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for range n {
		wg.Go(func() {
			for ctx.Err() == nil {
				_ = conn.Client().BLPop(ctx, time.Second, "nothing comes here").Err()
			}
		})
	}
	t.Cleanup(func() {
		cancel()
		wg.Wait()
	})
}
