package interop_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-redsync/redsync/v4"
	syncredis "github.com/go-redsync/redsync/v4/redis"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"

	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/redlock"
)

// nodes starts independent servers and returns clients of them.
func nodes(tb testing.TB, n int) []redis.UniversalClient {
	tb.Helper()
	var clients []redis.UniversalClient
	for range n {
		clients = append(clients, server(tb))
	}
	return clients
}

// oursOn returns a Client of this library on several servers.
func oursOn(t *testing.T, clients []redis.UniversalClient) *dlock.Client {
	t.Helper()
	c, err := dlock.New(&dlock.Config{}, dlock.WithBackend(redlock.New(clients, redlock.WithNodeTimeout(5*time.Second)))) // a machine may stand still
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// redsyncOn is a mutex of redsync on the same servers, with the same majority.
func redsyncOn(clients []redis.UniversalClient, key string, opts ...redsync.Option) *redsync.Mutex {
	var pools []syncredis.Pool
	for _, c := range clients {
		pools = append(pools, goredis.NewPool(c))
	}
	return redsync.New(pools...).NewMutex(key, append([]redsync.Option{redsync.WithExpiry(lease)}, opts...)...)
}

func TestRedlockExcludesRedsync(t *testing.T) {
	t.Parallel()
	clients := nodes(t, 3)
	c := oursOn(t, clients)
	if err := c.Lock(t.Context(), "k"); err != nil {
		t.Fatal(err)
	}
	m := redsyncOn(clients, "k")
	var taken *redsync.ErrTaken
	if err := m.TryLockContext(t.Context()); !errors.As(err, &taken) {
		t.Fatalf("redsync got a key that is taken: %v", err)
	}
	unlock(t, c, "k") // not disturbed by the attempt
	if err := redsyncOn(clients, "k", redsync.WithTries(500), redsync.WithRetryDelay(10*time.Millisecond)).LockContext(t.Context()); err != nil {
		t.Fatalf("redsync did not get a free key: %v", err)
	}
}

func TestRedsyncExcludesRedlock(t *testing.T) {
	t.Parallel()
	clients := nodes(t, 5)
	c := oursOn(t, clients)
	m := redsyncOn(clients, "k")
	if err := m.LockContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	busy(t, c, "k")
	done := make(chan error, 1)
	go func() { done <- c.Lock(t.Context(), "k") }()
	elapse(100 * time.Millisecond)
	if ok, err := m.ExtendContext(t.Context()); !ok || err != nil {
		t.Fatalf("their lock was disturbed: %v, %v", ok, err)
	}
	if ok, err := m.UnlockContext(t.Context()); !ok || err != nil {
		t.Fatalf("their lock was disturbed: %v, %v", ok, err)
	}
	within(t, recheck+slack, "ours has the key after their release", done)
}

// Both contend for one key, each with several clients: no two are inside together.
func TestRedlockAndRedsyncTogether(t *testing.T) {
	t.Parallel()
	clients := nodes(t, 3)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var d detector
	entered := make([]atomic.Int64, 4)
	workers := crew(4, func(i int) {
		c := oursOn(t, clients)
		for ctx.Err() == nil {
			if i < 2 {
				if c.Lock(ctx, "k") == nil {
					d.hold(time.Millisecond)
					entered[i].Add(1)
					_ = c.Unlock(context.Background(), "k")
				}
				continue
			}
			m := redsyncOn(clients, "k", redsync.WithTries(20), redsync.WithRetryDelay(10*time.Millisecond))
			if m.LockContext(ctx) == nil {
				d.hold(time.Millisecond)
				entered[i].Add(1)
				_, _ = m.UnlockContext(context.Background())
			}
		}
	})
	both := func() bool {
		n := values(entered)
		return n[0]+n[1] > 0 && n[2]+n[3] > 0
	}
	elapse(3 * time.Second)
	for end := time.Now().Add(soon); !both() && time.Now().Before(end); {
		elapse(10 * time.Millisecond)
	}
	cancel()
	workers.Wait()
	if d.overlaps.Load() > 0 || !both() {
		t.Errorf("%d overlaps, entries %v", d.overlaps.Load(), values(entered))
	}
}
