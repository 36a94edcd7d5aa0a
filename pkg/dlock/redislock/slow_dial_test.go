package redislock_test

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/redislock"
)

// stuck is far longer than a call may take after its context has ended.
const stuck = 15 * time.Second

// A slowDialer ignores its context, as users' dialers may.
type slowDialer struct {
	dials atomic.Int64
	began chan struct{} // has room for one
	end   chan struct{}
}

func newSlowDialer(t *testing.T) *slowDialer {
	s := &slowDialer{began: make(chan struct{}, 1), end: make(chan struct{})}
	t.Cleanup(func() { close(s.end) })
	return s
}

func (s *slowDialer) dial(context.Context, string, string) (net.Conn, error) {
	s.dials.Add(1)
	select {
	case s.began <- struct{}{}:
	default:
	}
	<-s.end
	return nil, errors.New("the test is over")
}

// silentAddr returns an address that accepts connections and never answers.
func silentAddr(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	t.Cleanup(func() { _ = l.Close() })
	return l.Addr().String()
}

// slowToConnect lists clients that take far longer to connect than callers wait.
var slowToConnect = map[string]func(*testing.T) redis.UniversalClient{
	"sentinel": func(t *testing.T) redis.UniversalClient {
		return redis.NewFailoverClient(&redis.FailoverOptions{
			MasterName: "m", SentinelAddrs: []string{silentAddr(t)}, DialerRetries: 1, ReadTimeout: 2 * stuck,
		})
	},
	"one server": func(t *testing.T) redis.UniversalClient {
		return redis.NewClient(&redis.Options{Dialer: newSlowDialer(t).dial, ContextTimeoutEnabled: true})
	},
	"cluster that does not answer": func(t *testing.T) redis.UniversalClient {
		return redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{silentAddr(t)}, MaxRedirects: -1, ReadTimeout: 2 * stuck})
	},
	"cluster": func(t *testing.T) redis.UniversalClient {
		return redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{refusing}, Dialer: newSlowDialer(t).dial, ContextTimeoutEnabled: true})
	},
}

// tryWithin is TryLock, which must end long before the client has a connection.
func tryWithin(ctx context.Context, t *testing.T, c *dlock.Client) error {
	t.Helper()
	done := make(chan error, 1)
	go func() {
		_, err := c.TryLock(ctx, "k")
		done <- err
	}()
	select {
	case err := <-done:
		return err
	case <-time.After(stuck):
		t.Fatal("the caller waits though its context has ended")
		return nil
	}
}

// Finding out why there is no connection must not delay a caller whose time is over.
func TestSlowDialEndsWithDeadline(t *testing.T) {
	t.Parallel()
	for name, dial := range slowToConnect {
		for _, opts := range [][]redislock.Option{nil, {redislock.WithMinReplicas(1, 100*time.Millisecond)}} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				client := dial(t)
				c, err := dlock.New(&dlock.Config{}, dlock.WithBackend(redislock.New(client, opts...)))
				check(t, err)
				t.Cleanup(func() { _ = c.Close() })
				t.Cleanup(func() { _ = client.Close() })
				for range 3 {
					ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
					err := tryWithin(ctx, t, c)
					cancel()
					wantError(t, err, dlock.ErrUnavailable)
				}
			})
		}
	}
}

// A caller that cancels does not wait for the reason why there is no connection.
func TestSlowDialEndsWithCancel(t *testing.T) {
	t.Parallel()
	for _, opts := range [][]redislock.Option{nil, {redislock.WithMinReplicas(1, 100*time.Millisecond)}} {
		s := newSlowDialer(t)
		client := redis.NewClient(&redis.Options{Dialer: s.dial, ContextTimeoutEnabled: true})
		c := locksOn(t, redislock.New(client, opts...), dlock.Config{})
		t.Cleanup(func() { _ = client.Close() })
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			<-s.began
			cancel()
		}()
		err := tryWithin(ctx, t, c)
		wantError(t, err, context.Canceled)
		n := s.dials.Load()
		if n != 1 {
			t.Errorf("%d dials, want 1", n)
		}
	}
}
