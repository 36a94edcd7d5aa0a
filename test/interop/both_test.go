package interop_test

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/memlock"
	"github.com/ceyewan/genesis/pkg/dlock/redislock"
)

// A process that holds keys on Redis and on the next backend excludes the old clients, and they exclude it.
func TestBothExcludesThem(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, client *redis.Client, r rival) {
		next, err := dlock.New(&dlock.Config{}, dlock.WithBackend(memlock.New()))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = next.Close() })
		old := ours(t, client, redislock.WithPlainClients(20*time.Millisecond))
		both, err := dlock.Both(old, next)
		if err != nil {
			t.Fatal(err)
		}
		err = both.Do(t.Context(), "order:123", func(context.Context) error {
			refused(t, client, r, "order:123")
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		h := obtain(t, client, r, "order:123", lease)
		busy(t, both, "order:123")
		released(t, h, true)
		if err := both.Lock(t.Context(), "order:123"); err != nil {
			t.Fatal(err)
		}
		refused(t, client, r, "order:123")
		unlock(t, both, "order:123")
	})
}
