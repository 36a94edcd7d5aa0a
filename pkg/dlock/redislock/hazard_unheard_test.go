package redislock_test

import (
	"context"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ceyewan/genesis/internal/servers"
	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/clog"
	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/redislock"
)

// A warningLog is a slog.Handler that keeps the text of warnings and errors.
type warningLog struct {
	slog.Handler
	text *textBuffer
}

func newWarningLog() *warningLog {
	text := new(textBuffer)
	return &warningLog{slog.NewTextHandler(text, &slog.HandlerOptions{Level: slog.LevelWarn}), text}
}

// about counts the lines that contain a word.
func (w *warningLog) about(word string) (n int) {
	for line := range strings.Lines(w.text.String()) {
		if strings.Contains(strings.ToLower(line), word) {
			n++
		}
	}
	return n
}

// A waiter whose user may not subscribe to channels is served in its turn. It finds out by
// renewing, so each turn may cost a heartbeat.
func TestWaitersWithoutChannelRights(t *testing.T) {
	t.Parallel()
	server := testenv.Redis(t)
	cfg := dlock.Config{DefaultTTL: testenv.UnderStress(5*time.Second, 1500*time.Millisecond)}
	warnings := newWarningLog()
	unheard := locksOn(t, redislock.New(dialUnheard(t, server)), cfg, dlock.WithLogger(clog.FromSlog(slog.New(warnings))))

	var log holderLog
	stop, busy := keepBusy(t, server.Addr(), 3, cfg, &log)
	testenv.Eventually(t, 20*time.Second, "the others contend", func() bool { return busy() > 20 })
	timeout := testenv.UnderStress[time.Duration](10, 3) * driver.Heartbeat(cfg.DefaultTTL)
	for i := range testenv.UnderStress(3, 100) {
		before := busy()
		ctx, cancel := context.WithTimeout(t.Context(), timeout)
		g, err := unheard.Acquire(ctx, "k")
		cancel()
		if err != nil {
			t.Fatalf("turn %d: not served within %v, the others %d times: %v", i, timeout, busy()-before, err)
		}
		check(t, log.hold(g, time.Millisecond))
	}
	stop()
	log.check(t)
	if n := warnings.about("channel"); n != 1 {
		t.Errorf("%d warnings about channels, want 1:\n%s", n, warnings.text)
	}
}

// dialUnheard returns a client whose user has no permission for channels.
func dialUnheard(t *testing.T, server *servers.Redis) *redis.Client {
	t.Helper()
	check(t, dialRedis(t, server.Addr()).Do(t.Context(), "ACL", "SETUSER", "unheard", "on", ">x", "~*", "resetchannels", "+@all").Err())
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr(), Username: "unheard", Password: "x", ContextTimeoutEnabled: true})
	t.Cleanup(func() { _ = rdb.Close() })
	return rdb
}

// A subscription that the server refuses is not retried without a pause. The refusal is an answer
// that comes at once.
func TestRefusedSubscriptionIsNotHammered(t *testing.T) {
	t.Parallel()
	server := testenv.Redis(t)
	direct := dialRedis(t, server.Addr())
	unheard := locksOn(t, redislock.New(dialUnheard(t, server)), dlock.Config{})
	g := acquire(t, locksAt(t, server.Addr()), "k")
	connections := func() int {
		n, err := strconv.Atoi(serverInfo(t, direct, "stats", "total_connections_received"))
		check(t, err)
		return n
	}
	before := connections()
	got := startWait(t, unheard, "k")
	elapse(3 * time.Second)
	if n := connections() - before; n > 50 {
		t.Errorf("%d new connections in 3 s", n)
	}
	unlock(t, g)
	unlock(t, granted(t, got, 20*time.Second).guard)
}

// keepBusy lets Clients take a key in turns until stop is called. busy returns how often they had
// it.
func keepBusy(t *testing.T, addr string, clients int, cfg dlock.Config, log *holderLog) (stop func(), busy func() int) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for range clients {
		c := locksOn(t, redislock.New(dialRedis(t, addr)), cfg)
		wg.Go(func() {
			for ctx.Err() == nil {
				g, err := c.Acquire(ctx, "k")
				if err == nil {
					err = log.hold(g, time.Millisecond)
				}
				if err != nil && ctx.Err() == nil {
					t.Errorf("a client with all rights: %v", err)
					return
				}
			}
		})
	}
	stop = func() {
		cancel()
		wg.Wait()
	}
	t.Cleanup(stop)
	return stop, log.count
}
