package redislock_test

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/redislock"
)

// A user with the rights of layout 2 may not mark a lock. Its claim is refused, so it is not left in the queue,
// where it could be granted the lock.
func TestDeniedMarkStoresNoWaiter(t *testing.T) {
	t.Parallel()
	server := testenv.Redis(t)
	direct := directTo(t, server)
	check(t, direct.Do(t.Context(), "ACL", "SETUSER", "u", "on", ">p", "~*", "&*", "+@all", "-setrange").Err())
	unlockLater := acquire(t, locksAt(t, server.Addr()), "k")
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr(), Username: "u", Password: "p", ContextTimeoutEnabled: true})
	t.Cleanup(func() { _ = rdb.Close() })
	c := locksOn(t, redislock.New(rdb), dlock.Config{DefaultTTL: time.Minute})
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	_, err := c.Acquire(ctx, "k")
	wantError(t, err, dlock.ErrDenied)
	keys, _ := redislock.Keys("", "k")
	for _, key := range keys {
		if kind := direct.Type(t.Context(), key).Val(); kind == "zset" || kind == "hash" {
			t.Errorf("%q is left", key)
		}
	}
	unlock(t, unlockLater)
}
