package redislock_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/ceyewan/genesis/internal/faultproxy"
	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock"
)

// A caller leaves while its process subscribes, before its claim is queued. Nothing was sent that
// could have stored the claim, and the error does not say that something may have been.
func TestCallerThatLeavesBeforeItIsQueued(t *testing.T) {
	t.Parallel()
	server := testenv.Redis(t)
	proxy := testenv.Proxy(t, server.Addr())
	acquire(t, locksAt(t, server.Addr()), "k", dlock.WithTTL(time.Minute))
	c := locksAt(t, proxy.Addr())
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	proxy.Intercept(func(cmd []string) faultproxy.Action {
		if cmd[0] == "SUBSCRIBE" {
			cancel()
			return faultproxy.Swallow
		}
		return faultproxy.Forward
	})
	_, err := c.Acquire(ctx, "k")
	if !errors.Is(err, context.Canceled) || errors.Is(err, dlock.ErrUnknownOutcome) {
		t.Errorf("the error is %v", err)
	}
}
