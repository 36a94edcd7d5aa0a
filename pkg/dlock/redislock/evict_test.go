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

// Whether the server notifies a holder that is evicted depends on whether its Client is subscribed, which it
// is once one of its claims has waited.
func TestEvictedHolderLearns(t *testing.T) {
	t.Parallel()
	server := testenv.Redis(t)
	direct := directTo(t, server)
	admin, err := locksAt(t, server.Addr()).Admin()
	check(t, err)

	// One that never waited finds out when it renews.
	ttl := testenv.UnderStress(9*time.Second, 1500*time.Millisecond)
	g := acquire(t, locksAt(t, server.Addr()), "k", dlock.WithTTL(ttl))
	if channels := direct.PubSubChannels(t.Context(), "*").Val(); len(channels) != 0 {
		t.Fatalf("subscribed to %q: the test shows nothing", channels)
	}
	evict(t, admin, "k", g.Token())
	wantLost(t, g, time.Now(), ttl/3+slack)

	// One that has waited is notified. Its next renewal would be after 20 minutes.
	c := locksAt(t, server.Addr())
	other := acquire(t, c, "k", dlock.WithTTL(time.Hour))
	waiter := startWait(t, c, "k", dlock.WithTTL(time.Hour))
	awaitChannels(t, direct, "k", nil)
	unlock(t, other)
	g = granted(t, waiter, time.Minute).guard
	testenv.Eventually(t, time.Minute, "the renewal after the grant", func() bool {
		return direct.PTTL(t.Context(), "k").Val() > 50*time.Minute
	})
	evict(t, admin, "k", g.Token())
	wantLost(t, g, time.Now(), time.Minute)
}
