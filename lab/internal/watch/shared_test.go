package watch

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/ceyewan/genesis/internal/servers"
	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/lab/internal/worker"
	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/redislock"
)

// listening is a watcher of one server, and a Client of it.
func listening(t *testing.T, cfg dlock.Config) (*Watcher, *servers.Redis, *dlock.Client) {
	t.Helper()
	server := testenv.Redis(t, "--notify-keyspace-events", "KA")
	ctx, cancel := context.WithCancel(context.Background())
	w := &Watcher{cancel: cancel}
	w.work.Go(func() { w.redis(ctx, server.Addr(), alone{w}) })
	t.Cleanup(func() { w.Stop() })
	conn := server.Client()
	t.Cleanup(func() { _ = conn.Close() })
	testenv.Eventually(t, time.Minute, "the watcher listens", func() bool { return conn.PubSubNumPat(t.Context()).Val() == 1 })
	cfg.Prefix = worker.Prefix
	client, err := dlock.New(&cfg, dlock.WithBackend(redislock.New(conn)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	return w, server, client
}

func (w *Watcher) heard(fence int64) (d Death, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	i := slices.IndexFunc(w.deaths, func(d Death) bool { return d.Fence == fence })
	if i < 0 {
		return d, false
	}
	return w.deaths[i], true
}

// The ends of readers and permits are heard one by one, and all of them when the key is deleted.
func TestReadersAreHeard(t *testing.T) {
	for name, opt := range map[string]dlock.LockOption{"readers": dlock.WithShared(), "permits": dlock.WithPermits(3)} {
		t.Run(name, func(t *testing.T) {
			w, server, client := listening(t, dlock.Config{})
			reader := func() *dlock.Guard {
				g, err := client.Acquire(t.Context(), "mixed-1", opt)
				if err != nil {
					t.Fatal(err)
				}
				return g
			}
			first, second := reader(), reader()
			defer first.Unlock(context.Background())
			// The watcher may ask who holds the lock when a reader has left already; then another one comes.
			var left []int64
			testenv.Eventually(t, time.Minute, "the end of a reader is heard", func() bool {
				if slices.ContainsFunc(left, func(token int64) bool { _, ok := w.heard(token); return ok }) {
					return true
				}
				g := reader()
				left = append(left, g.Token())
				if err := g.Unlock(t.Context()); err != nil {
					t.Fatal(err)
				}
				return false
			})
			conn := server.Client()
			defer conn.Close()
			if err := conn.Del(t.Context(), worker.Prefix+"mixed-1").Err(); err != nil {
				t.Fatal(err)
			}
			testenv.Eventually(t, time.Minute, "the end of all is heard", func() bool {
				a, ok := w.heard(first.Token())
				b, both := w.heard(second.Token())
				return ok && both && a.Cause == "del" && b.Cause == "del" && a.Key == "mixed-1"
			})
		})
	}
}

// A lock that is handed over inside a process has several tokens.
func TestTokensOfATurnAreHeard(t *testing.T) {
	w, _, client := listening(t, dlock.Config{LocalBatch: 4})
	g, err := client.Acquire(t.Context(), "k")
	if err != nil {
		t.Fatal(err)
	}
	if err := g.Unlock(t.Context()); err != nil {
		t.Fatal(err)
	}
	// The value may be asked for too late; then the lock is taken once more.
	testenv.Eventually(t, time.Minute, "the end of a lock with several tokens is heard", func() bool {
		if d, ok := w.heard(g.Token()); ok {
			return d.Tokens > 1
		}
		if g, err = client.Acquire(t.Context(), "k"); err != nil {
			t.Fatal(err)
		}
		if err := g.Unlock(t.Context()); err != nil {
			t.Fatal(err)
		}
		return false
	})
}
