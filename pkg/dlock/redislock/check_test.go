package redislock_test

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/clog"
	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/redislock"
)

func checkServer(t *testing.T, opts []redislock.Option, args ...string) map[string]dlock.Finding {
	t.Helper()
	client := testenv.Redis(t, args...).Client()
	defer func() { _ = client.Close() }()
	locks, err := dlock.New(&dlock.Config{}, dlock.WithBackend(redislock.New(client, opts...)))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = locks.Close() }()
	findings, err := answered(t, func() ([]dlock.Finding, error) { return locks.Check(t.Context()) })
	if err != nil {
		t.Fatal(err)
	}
	byName := map[string]dlock.Finding{}
	for _, f := range findings {
		byName[f.Name] = f
		if f.Level != dlock.LevelOK && f.Fix == "" {
			t.Errorf("%s has no fix", f.Name)
		}
	}
	return byName
}

func TestCheck(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, finding string
		level         dlock.Level
		opts          []redislock.Option
		args          []string
	}{
		{name: "as it should be", finding: "eviction-policy", level: dlock.LevelOK, args: []string{"--maxmemory-policy", "noeviction"}},
		{name: "evicts", finding: "eviction-policy", level: dlock.LevelUnsafe, args: []string{"--maxmemory-policy", "volatile-lru", "--maxmemory", "50mb"}},
		{name: "would evict", finding: "eviction-policy", level: dlock.LevelWarning, args: []string{"--maxmemory-policy", "allkeys-lru"}},
		{name: "forgets", finding: "persistence", level: dlock.LevelWarning},
		{name: "keeps", finding: "persistence", level: dlock.LevelOK, args: []string{"--appendonly", "yes"}},
		{name: "too few replicas", finding: "replication", level: dlock.LevelUnsafe, opts: []redislock.Option{redislock.WithMinReplicas(1, time.Second)}},
		{name: "alone", finding: "replication", level: dlock.LevelOK},
		{name: "replica", finding: "replication", level: dlock.LevelUnsafe, args: []string{"--replicaof", "127.0.0.1", "1"}},
		{name: "version", finding: "version", level: dlock.LevelOK},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if f := checkServer(t, tc.opts, tc.args...)[tc.finding]; f.Level != tc.level || f.Detail == "" {
				t.Errorf("%+v, want level %v", f, tc.level)
			}
		})
	}
}

// Check warns of a server that is far away, and of no other.
func TestCheckRoundTrip(t *testing.T) {
	t.Parallel()
	const slow = 200 * time.Millisecond
	server := testenv.Redis(t)
	proxy := testenv.Proxy(t, server.Addr())
	locks := locksOn(t, redislock.New(dialRedis(t, proxy.Addr())), dlock.Config{})
	for _, delay := range []time.Duration{0, slow} {
		proxy.Delay(delay, 0)
		findings, err := answered(t, func() ([]dlock.Finding, error) { return locks.Check(t.Context()) })
		check(t, err)
		i := slices.IndexFunc(findings, func(f dlock.Finding) bool { return f.Name == "round-trip" })
		if i < 0 {
			t.Fatalf("no round trip in %+v", findings)
		}
		f := findings[i]
		median, err := time.ParseDuration(strings.TrimPrefix(f.Detail, "median "))
		check(t, err)
		if median < delay || (f.Level == dlock.LevelWarning) != (median > slow) || f.Fix == "" { // a busy machine is slow as well
			t.Errorf("%v away: %+v", delay, f)
		}
	}
}

// Check finds a pool that is too small or in which calls had to wait.
func TestCheckPool(t *testing.T) {
	t.Parallel()
	server := testenv.Redis(t)
	for _, tc := range []struct {
		name  string
		size  int
		wait  bool
		level dlock.Level
	}{
		{name: "enough", size: 16, level: dlock.LevelOK},
		{name: "too few", size: 2, level: dlock.LevelWarning},
		{name: "shared", size: 10, wait: true, level: dlock.LevelWarning},
	} {
		t.Run(tc.name, func(t *testing.T) {
			client := redis.NewClient(&redis.Options{Addr: server.Addr(), PoolSize: tc.size, ContextTimeoutEnabled: true})
			defer client.Close()
			locks := locksOn(t, redislock.New(client), dlock.Config{})
			if tc.wait {
				waitForConnection(t, client, tc.size)
			}
			findings, err := answered(t, func() ([]dlock.Finding, error) { return locks.Check(t.Context()) })
			check(t, err)
			for _, f := range findings {
				if f.Name == "pool" && f.Level == tc.level && (f.Fix != "") == (f.Level != dlock.LevelOK) {
					return
				}
			}
			t.Errorf("no pool at level %v in %+v", tc.level, findings)
		})
	}
}

// waitForConnection makes a command wait for a connection of a pool.
func waitForConnection(t *testing.T, client *redis.Client, size int) {
	t.Helper()
	var wg sync.WaitGroup
	for range size + 1 {
		wg.Go(func() { _ = client.BLPop(t.Context(), 200*time.Millisecond, "empty").Err() })
	}
	wg.Wait()
}

// The first use of a server that evicts keys logs a warning.
func TestFirstUseWarns(t *testing.T) {
	t.Parallel()
	server := testenv.Redis(t, "--maxmemory-policy", "allkeys-lru", "--maxmemory", "50mb")
	warnedClient(t, server.Addr(), "redis is not safe for locks", "noeviction")
}

// warnedClient returns a Client whose first use has logged a warning with these words. A Client asks the server once, and
// drops what is not answered: if that was because the machine stalled, another Client is used.
func warnedClient(t *testing.T, addr string, words ...string) *dlock.Client {
	t.Helper()
	for {
		rdb, asked, text := dialRedis(t, addr), new(questions), new(textBuffer)
		rdb.AddHook(asked)
		c := locksOn(t, redislock.New(rdb), dlock.Config{}, dlock.WithLogger(clog.FromSlog(slog.New(slog.NewTextHandler(text, nil)))))
		began := time.Now()
		unlock(t, acquire(t, c, "first"))
		warned := func() bool {
			return !slices.ContainsFunc(words, func(word string) bool { return !strings.Contains(text.String(), word) })
		}
		testenv.Eventually(t, time.Minute, "a warning", func() bool { return warned() || asked.unanswered.Load() })
		if warned() {
			return c
		}
		if !testenv.Stalled(t, began, oneAttempt) {
			t.Fatalf("the server did not answer the questions of a first use, and the log is %q", text)
		}
	}
}

// questions is a hook that sees whether a question of Check was not answered.
type questions struct {
	panickingHook
	unanswered atomic.Bool
}

func (h *questions) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if err != nil && (cmd.Name() == "info" || cmd.Name() == "ping") {
			h.unanswered.Store(true)
		}
		return err
	}
}

// Without the rights to ask, Check finds nothing, and says so.
func TestCheckDenied(t *testing.T) {
	t.Parallel()
	server := testenv.Redis(t)
	direct := directTo(t, server)
	d := openAsUser(t, server.Addr(), direct)
	for _, command := range []string{"info", "ping"} {
		setUser(t, direct, "u", allowAll, []string{"-" + command})
		findings, err := d.(driver.Checker).Check(t.Context())
		if !errors.Is(err, driver.ErrDenied) || len(findings) > 0 {
			t.Errorf("without %s: %+v, %v", command, findings, err)
		}
	}
}
