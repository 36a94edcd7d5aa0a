//go:build unix

package once_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/once"
	"github.com/ceyewan/genesis/pkg/dlock/redislock"
)

// A hundred processes wait for a value on Redis: it is computed once, and they return together and not one after the
// other, as the control without shared locks does.
func TestCacheOnRedis(t *testing.T) {
	t.Parallel()
	conn := redis.NewClient(&redis.Options{Addr: testenv.Redis(t).Addr(), PoolSize: 20})
	t.Cleanup(func() { _ = conn.Close() })
	admin, err := client(t, redislock.New(conn)).Admin()
	check(t, err)
	together := untilAllReturn(t, redislock.New(conn), admin, "together")
	chain := untilAllReturn(t, exclusiveOnly{redislock.New(conn)}, admin, "chain")
	t.Logf("the last one returns after %v, and after %v in a chain", together, chain)
	if together > testenv.UnderStress(time.Minute, chain/2) {
		t.Errorf("the last one returns after %v, and after %v in a chain", together, chain)
	}
}

// slowValues is a Store that takes a while to answer, as over a network.
type slowValues struct{ *values }

func (v slowValues) Get(ctx context.Context, key string) (string, bool, error) {
	<-time.After(2 * time.Millisecond)
	return v.values.Get(ctx, key)
}

// untilAllReturn returns the time from when the value is computed until all have it.
func untilAllReturn(t *testing.T, locks driver.Opener, admin *dlock.Admin, key string) time.Duration {
	t.Helper()
	const processes = 50
	store := slowValues{&values{}}
	var computed atomic.Int32
	ready := make(chan struct{})
	var wg sync.WaitGroup
	for i := range processes {
		c := cache(t, client(t, locks), store, once.CacheConfig{Wait: 10 * time.Minute, Lease: time.Minute})
		wg.Go(func() {
			text, err := c.Get(t.Context(), key, func(ctx context.Context) (string, error) {
				computed.Add(1)
				select {
				case <-ready:
				case <-ctx.Done():
				}
				return "value", nil
			})
			if text != "value" || err != nil {
				t.Errorf("%q, %v", text, err)
			}
		})
		// One after the other: a machine that is busy enough would not answer all of them in time.
		testenv.Eventually(t, 2*time.Minute, "they wait", func() bool {
			claims, err := admin.Inspect(t.Context(), key+":compute")
			return err == nil && len(claims) == i+1
		})
	}
	began := time.Now()
	close(ready)
	wg.Wait()
	if computed.Load() != 1 {
		t.Errorf("computed %d times", computed.Load())
	}
	return time.Since(began)
}
