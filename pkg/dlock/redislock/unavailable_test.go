package redislock_test

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ceyewan/genesis/internal/faultproxy"
	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/redislock"
)

// refusing is an address without a listener.
const refusing = "127.0.0.1:1"

// unreachable lists clients of servers that refuse connections, as users create them: go-redis
// dials five times, 100 ms apart, unless it is configured otherwise.
var unreachable = map[string]func() redis.UniversalClient{
	"one server": func() redis.UniversalClient {
		return redis.NewClient(&redis.Options{Addr: refusing})
	},
	"one server, deadlines": func() redis.UniversalClient {
		return redis.NewClient(&redis.Options{Addr: refusing, ContextTimeoutEnabled: true})
	},
	"one server, one dial": func() redis.UniversalClient {
		return redis.NewClient(&redis.Options{Addr: refusing, ContextTimeoutEnabled: true, DialerRetries: 1, MaxRetries: -1})
	},
	"sentinel": func() redis.UniversalClient {
		return redis.NewFailoverClient(&redis.FailoverOptions{MasterName: "m", SentinelAddrs: []string{refusing}, DialerRetries: 1})
	},
	"cluster": func() redis.UniversalClient {
		return redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{refusing}, DialerRetries: 1})
	},
}

func wantRefused(t *testing.T, err error) {
	t.Helper()
	var op *net.OpError
	switch {
	case !errors.Is(err, dlock.ErrUnavailable), errors.Is(err, dlock.ErrUnknownOutcome):
		t.Errorf("error is %v, want only %v", err, dlock.ErrUnavailable)
	case !strings.Contains(err.Error(), "connection refused") || !errors.As(err, &op):
		t.Errorf("the cause is lost: %v", err)
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		t.Errorf("%v is taken for the end of the caller's context", err)
	}
}

// Nothing was sent, so the outcome is known, and there is nothing to clean up.
func TestRefusedIsUnavailable(t *testing.T) {
	t.Parallel()
	for name, dial := range unreachable {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			client := dial()
			defer client.Close()
			for _, opts := range [][]redislock.Option{nil, {redislock.WithMinReplicas(1, 100*time.Millisecond)}} {
				c := locksOn(t, redislock.New(client, opts...), dlock.Config{})
				_, err := c.TryLock(t.Context(), "k")
				wantRefused(t, err)
				_, err = c.TryAcquire(t.Context(), "k")
				wantRefused(t, err)
				began := time.Now()
				err = c.Close()
				took := time.Since(began)
				if err != nil || took > testenv.UnderStress(10*time.Second, time.Second) { // two with something to clean up
					t.Errorf("Close: %v after %v", err, took)
				}
			}
		})
	}
}

// The cause is reported although the wait may have cut the last attempt short.
func TestRefusedWithWait(t *testing.T) {
	t.Parallel()
	for name, dial := range unreachable {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			client := dial()
			defer client.Close()
			c := locksOn(t, redislock.New(client), dlock.Config{})
			short := testenv.UnderStress(3*time.Second, 200*time.Millisecond) // long enough for an attempt to fail
			for _, wait := range []time.Duration{short, short * 5 / 4, short * 9 / 8} {
				_, err := c.Acquire(t.Context(), "k", dlock.WithWait(wait))
				wantRefused(t, err)
			}
		})
	}
}

// A call that ends while go-redis is still dialing names the cause too.
func TestRefusedBeforeTheDeadline(t *testing.T) {
	t.Parallel()
	ended := make(chan struct{})
	defer close(ended)
	refused := errors.New("refused")
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		deadline, _ := ctx.Deadline()
		if time.Until(deadline) > time.Minute { // go-redis, not the dial that looks for the cause
			<-ended
		}
		return nil, refused
	}
	for _, opts := range [][]redislock.Option{nil, {redislock.WithMinReplicas(1, 100*time.Millisecond)}} {
		client := redis.NewClient(&redis.Options{Dialer: dial, DialTimeout: time.Hour, DialerRetries: 1, ContextTimeoutEnabled: true})
		t.Cleanup(func() { _ = client.Close() })
		d, err := redislock.New(client, opts...).Open(driver.Options{Logger: slog.New(slog.DiscardHandler)})
		check(t, err)
		t.Cleanup(func() { _ = d.Close() })
		for _, limit := range []time.Duration{20 * time.Millisecond, time.Minute} { // the caller's, or that of one trip
			testenv.Eventually(t, time.Minute, "the cause", func() bool { // it may come too late for the first call
				ctx, cancel := context.WithTimeout(t.Context(), limit)
				defer cancel()
				_, err := d.Acquire(ctx, driver.Request{Ref: driver.Ref{Key: "k", ID: claimID(1), TTL: time.Minute}})
				return errors.Is(err, refused)
			})
		}
	}
}

// A retrier is a hook that a program may have in its client: it resends a failed command, although
// this library's commands ask not to be resent.
type retrier struct {
	between func()
	again   atomic.Int64
}

func (r *retrier) DialHook(next redis.DialHook) redis.DialHook { return next }

func (r *retrier) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		var reply redis.Error
		if err == nil || errors.As(err, &reply) {
			return err
		}
		r.between()
		r.again.Add(1)
		return next(ctx, cmd)
	}
}

func (r *retrier) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// A command was sent and its connection cut, and the next connection was refused: the error is that
// of the refused one, but the lock may be stored.
func TestSentThenRefusedIsUnknown(t *testing.T) {
	t.Parallel()
	server := testenv.Redis(t)
	for _, retries := range []bool{false, true} {
		proxy := testenv.Proxy(t, server.Addr())
		client := redis.NewClient(&redis.Options{Addr: proxy.Addr(), ContextTimeoutEnabled: true, DialerRetries: 1})
		defer client.Close()
		hook := &retrier{between: func() { _ = proxy.Shut() }} // nothing listens from then on
		if retries {
			client.AddHook(hook)
		}
		c := locksOn(t, redislock.New(client), dlock.Config{DefaultTTL: 5 * time.Second})
		unlock(t, acquire(t, c, "warm"))
		proxy.Intercept(func(cmd []string) faultproxy.Action {
			switch kindOf(cmd) {
			case acquiring:
				return faultproxy.DropReply
			case releasing:
				return faultproxy.Swallow
			default:
				return faultproxy.Forward
			}
		})
		_, err := c.TryLock(t.Context(), "k")
		wantError(t, err, dlock.ErrUnknownOutcome)
		if errors.Is(err, dlock.ErrUnavailable) {
			t.Errorf("%v, though the lock may be stored", err)
		}
		if retries && (hook.again.Load() == 0 || !strings.Contains(err.Error(), "refused")) {
			t.Fatalf("the fault did not happen: %v", err)
		}
		direct := server.Client()
		if direct.Exists(t.Context(), "k").Val() != 1 {
			t.Error("the fault did not happen: nothing is stored")
		}
		direct.FlushAll(t.Context())
		_ = direct.Close()
	}
}

// A call whose context ends before it has a connection is never sent.
func TestWithdrawnCallIsNotSent(t *testing.T) {
	t.Parallel()
	server := testenv.Redis(t)
	proxy := testenv.Proxy(t, server.Addr())
	client := redis.NewClient(&redis.Options{Addr: proxy.Addr(), DialerRetries: 1})
	defer client.Close()
	c := locksOn(t, redislock.New(client), dlock.Config{})
	proxy.BlackHole(true) // so HELLO is not answered, and nothing comes after it
	for _, key := range []string{"a", "b", "c"} {
		_, err := c.Acquire(t.Context(), key, dlock.WithWait(150*time.Millisecond))
		wantError(t, err, dlock.ErrUnavailable)
		if errors.Is(err, dlock.ErrUnknownOutcome) || errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("error is %v", err)
		}
	}
	proxy.Heal()
	unlock(t, acquire(t, c, "d"))
	closeLocks(t, c)
	direct := server.Client()
	defer direct.Close()
	left := direct.Exists(t.Context(), "a", "b", "c").Val()
	if left != 0 {
		t.Errorf("%d locks were stored", left)
	}
}
