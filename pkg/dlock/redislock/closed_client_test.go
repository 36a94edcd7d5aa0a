package redislock_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/redislock"
)

// The Redis client is closed before the Client that uses it: Close reports that the outcome is
// unknown, not that nothing is stored.
func TestCloseAfterTheRedisClient(t *testing.T) {
	t.Parallel()
	server := testenv.Redis(t)
	client, direct := dialRedis(t, server.Addr()), dialRedis(t, server.Addr())
	c := locksOn(t, redislock.New(client), dlock.Config{})
	acquire(t, c, "k", dlock.WithTTL(time.Minute))
	check(t, client.Close())
	err := c.Close()
	if !errors.Is(err, dlock.ErrUnknownOutcome) || errors.Is(err, dlock.ErrUnavailable) {
		t.Errorf("Close says: %v", err)
	}
	if direct.Exists(context.Background(), "k").Val() != 1 {
		t.Error("the lock is not stored")
	}
}
