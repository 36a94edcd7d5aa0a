package redislock_test

import (
	"testing"
	"time"

	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock"
)

// The lock of a plain client has no token, and so cannot be evicted.
func TestEvictOfAPlainClient(t *testing.T) {
	t.Parallel()
	server := testenv.Redis(t)
	direct := directTo(t, server)
	check(t, direct.Set(t.Context(), "k", "plain", time.Minute).Err())
	admin, err := locksAt(t, server.Addr()).Admin()
	check(t, err)
	wantError(t, admin.Evict(t.Context(), "k", 0), dlock.ErrLockNotHeld)
	if direct.Get(t.Context(), "k").Val() != "plain" {
		t.Error("the lock was deleted")
	}
}
