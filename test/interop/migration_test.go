package interop_test

import (
	"context"
	"errors"
	"testing"
	"time"

	bsm "github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"

	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/redislock"
)

// The code of docs/migration.md: before, and after.

type task func(ctx context.Context) error

func beforeRedsync(ctx context.Context, client *redis.Client, job task) error {
	mutex := redsync.New(goredis.NewPool(client)).NewMutex("order:123", redsync.WithExpiry(10*time.Second))
	if err := mutex.LockContext(ctx); err != nil {
		return err
	}
	defer mutex.UnlockContext(ctx)
	return job(ctx)
}

func beforeBSM(ctx context.Context, client *redis.Client, job task) error {
	retry := &bsm.Options{RetryStrategy: bsm.LinearBackoff(100 * time.Millisecond)}
	lock, err := bsm.Obtain(ctx, client, "order:123", 10*time.Second, retry)
	if err != nil {
		return err
	}
	defer lock.Release(ctx)
	return job(ctx)
}

func after(ctx context.Context, client *redis.Client, job task) error {
	// Once for the whole program:
	backend := redislock.New(client, redislock.WithPlainClients(20*time.Millisecond))
	locks, err := dlock.New(&dlock.Config{DefaultTTL: 10 * time.Second}, dlock.WithBackend(backend))
	if err != nil {
		return err
	}
	defer locks.Close()

	// For each job:
	return locks.Do(ctx, "order:123", job, dlock.WithWait(5*time.Second))
}

// Each of them works on the key, and keeps out the others meanwhile.
func TestMigration(t *testing.T) {
	t.Parallel()
	client := server(t)
	ways := []func(context.Context, *redis.Client, task) error{beforeRedsync, beforeBSM, after}
	ran := 0
	for _, way := range ways {
		err := way(t.Context(), client, func(ctx context.Context) error {
			ran++
			for _, r := range rivals {
				refused(t, client, r, "order:123")
			}
			ok, err := ours(t, client).TryLock(ctx, "order:123")
			if ok {
				err = errors.New("ours got a key that is taken")
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
	}
	if ran != len(ways) {
		t.Errorf("%d of %d jobs ran", ran, len(ways))
	}
}
