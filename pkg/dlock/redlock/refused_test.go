package redlock_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ceyewan/genesis/internal/faultproxy"
	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/redlock"
)

// A cutAfterClaim cuts off its server when the server has stored the claim on k, before the driver
// sees the answer.
type cutAfterClaim struct {
	client *redis.Client
	proxy  *faultproxy.Proxy
	once   sync.Once
}

func (*cutAfterClaim) DialHook(next redis.DialHook) redis.DialHook { return next }

func (*cutAfterClaim) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (h *cutAfterClaim) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		args := cmd.Args()
		if len(args) > 3 && args[3] == "k" {
			h.once.Do(func() {
				h.proxy.Refuse(true)
				h.proxy.Cut()
				for h.client.PoolStats().IdleConns > 0 { // each ping finds a dead connection
					_ = h.client.Ping(ctx)
				}
			})
		}
		return err
	}
}

// cutBetweenPhases returns a Client for which the first two servers are cut off once they
// have stored the claim on k, and the last one hangs until its time is over.
func cutBetweenPhases(t *testing.T, s *set, timeout time.Duration) *dlock.Client {
	warm(t, s.locks(t, dlock.Config{}))
	var clients []redis.UniversalClient
	for i, p := range s.proxies {
		c := redis.NewClient(&redis.Options{Addr: p.Addr(), ContextTimeoutEnabled: true, DialerRetries: 1, MaxRetries: -1})
		t.Cleanup(func() { _ = c.Close() })
		if i < 2 {
			c.AddHook(&cutAfterClaim{client: c, proxy: p})
			check(t, c.Ping(t.Context()).Err()) // so that the claim need not wait for a connection
		}
		clients = append(clients, c)
	}
	s.proxies[2].BlackHole(true)
	return locksOn(t, clients, dlock.Config{}, redlock.WithNodeTimeout(timeout))
}

// Servers that have stored the claim refuse the confirmation: nothing of it was sent, but the claim
// is stored.
func TestRefusedBetweenPhases(t *testing.T) {
	t.Parallel()
	for name, limits := range map[string]struct{ call, node time.Duration }{
		"": {patience, enough}, "cut short": {time.Second, ample},
	} {
		t.Run("refused "+name, func(t *testing.T) {
			t.Parallel()
			for !refusedBetweenPhases(t, limits.call, limits.node) {
				t.Log("the machine stalled, and no server stored the claim in time")
			}
		})
	}
}

// refusedBetweenPhases reports whether a claim was stored when its confirmation was refused.
func refusedBetweenPhases(t *testing.T, call, node time.Duration) (shown bool) {
	t.Helper()
	s := start(t, 3)
	c := cutBetweenPhases(t, s, node)
	ctx, cancel := context.WithTimeout(t.Context(), call)
	defer cancel()
	began := time.Now()
	_, err := c.TryAcquire(ctx, "k", dlock.WithTTL(time.Hour))
	if s.holders(t, "k") == 0 {
		if !testenv.Stalled(t, began, 500*time.Millisecond) {
			t.Fatalf("no server stored the claim: %v", err)
		}
		return false
	}
	want(t, err, dlock.ErrUnknownOutcome)
	if errors.Is(err, dlock.ErrUnavailable) {
		t.Errorf("%v, though the claim is stored", err)
	}
	s.heal()
	soon(t, "the claim is removed", func() bool { return s.holders(t, "k") == 0 })
	return true
}

// The cleanup of a refused attempt arrives after the next attempt of the same call has won, and
// leaves what that one has stored.
func TestRefusedAttemptSparesTheNextGrant(t *testing.T) {
	t.Parallel()
	s := start(t, 3)
	a, b := s.locks(t, dlock.Config{}), s.locks(t, dlock.Config{})
	warm(t, a)
	warm(t, b)
	check(t, s.direct[0].Set(t.Context(), "k", "another", 0).Err()) // so that the waiter is shown there
	asked, gate := make(chan struct{}, 1000), make(chan struct{})
	open := sync.OnceFunc(func() { close(gate) })
	defer open()
	s.intercept(func(node int, cmd []string) faultproxy.Action {
		switch {
		case node == 0 && calls(cmd, "acquire", "k"):
			asked <- struct{}{}
		case node > 0 && calls(cmd, "release", "k"):
			<-gate
		}
		return faultproxy.Forward
	})
	for _, p := range s.proxies[1:] {
		p.Refuse(true)
		p.Cut()
	}
	got := make(chan *dlock.Guard, 1)
	go func() { got <- acquire(t, a, "k", dlock.WithTTL(time.Hour)) }()
	for range 3 { // so two attempts were given up
		<-asked
	}
	for _, p := range s.proxies[1:] {
		p.Refuse(false)
	}
	g := <-got
	s.logCommands(t)
	open()
	for node := 1; node < 3; node++ {
		testenv.Eventually(t, patience, "the late cleanup arrives", func() bool { return s.hasRun(t, node, "release", "k") })
	}
	check(t, s.direct[0].Del(t.Context(), "k").Err())
	ok, err := b.TryLock(t.Context(), "k", dlock.WithTTL(time.Hour))
	if ok || s.holders(t, "k") < 2 || g.Context().Err() != nil {
		t.Errorf("another gets the lock: %v, %v; %d servers have it, and its holder's context says %v", ok, err, s.holders(t, "k"), g.Context().Err())
	}
	unlock(t, g)
}
