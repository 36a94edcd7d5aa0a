package redlock_test

import (
	"bytes"
	"context"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/clog"
	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/redlock"
)

// A lockedBuffer collects what a log writes.
type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// A waiter whose user has no permission for channels is served, because it asks from time to time.
// It does not keep subscribing without a pause, and one warning names the fix.
func TestWaiterWithoutChannelRights(t *testing.T) {
	t.Parallel()
	s := start(t, 3).straight(t)
	var clients []redis.UniversalClient
	for i, d := range s.direct {
		check(t, d.Do(t.Context(), "ACL", "SETUSER", "unheard", "on", ">x", "~*", "resetchannels", "+@all").Err())
		c := redis.NewClient(&redis.Options{Addr: s.servers[i].Addr(), Username: "unheard", Password: "x", ContextTimeoutEnabled: true})
		t.Cleanup(func() { _ = c.Close() })
		clients = append(clients, c)
	}
	text := new(lockedBuffer)
	log := slog.New(slog.NewTextHandler(text, &slog.HandlerOptions{Level: slog.LevelWarn}))
	unheard, err := dlock.New(&dlock.Config{DefaultTTL: testenv.Lease}, dlock.WithBackend(redlock.New(clients, patient)), dlock.WithLogger(clog.FromSlog(log)))
	check(t, err)
	t.Cleanup(func() { _ = unheard.Close() })
	holder := locksOn(t, s.clients, dlock.Config{}, patient)
	g := acquire(t, holder, "k")

	before, began := connections(t, s.direct[0]), time.Now()
	got := make(chan error, 1)
	go func() { got <- unheard.Lock(context.Background(), "k") }()
	testenv.Eventually(t, patience, "the warning", func() bool { return strings.Contains(text.String(), "channel") })
	elapse(3 * time.Second)
	const perSecond = 50.0 / 3
	n, span := connections(t, s.direct[0])-before, time.Since(began)
	if float64(n) > perSecond*span.Seconds() { // a machine that stalls makes fewer
		t.Errorf("%d new connections to a node in %v, want at most %.0f a second", n, span, perSecond)
	}
	unlock(t, g)
	select {
	case err := <-got:
		check(t, err)
	case <-time.After(patience):
		t.Fatal("the waiter was never served")
	}
	unlockKey(t, unheard, "k")
	warnings := 0
	for line := range strings.Lines(text.String()) {
		if strings.Contains(line, "channel") {
			warnings++
		}
	}
	if warnings != 1 {
		t.Errorf("%d warnings about channels, want 1:\n%s", warnings, text)
	}
}

// connections returns how many connections a server has accepted so far.
func connections(tb testing.TB, c *redis.Client) int {
	tb.Helper()
	info, err := c.Info(context.Background(), "stats").Result()
	check(tb, err)
	for line := range strings.Lines(info) {
		if value, ok := strings.CutPrefix(line, "total_connections_received:"); ok {
			n, err := strconv.Atoi(strings.TrimSpace(value))
			check(tb, err)
			return n
		}
	}
	tb.Fatal("the server does not count connections")
	return 0
}
