package redlock_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ceyewan/genesis/internal/faultproxy"
	"github.com/ceyewan/genesis/internal/hazardtest"
	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/redlock"
)

const (
	// patience is for events that must happen, at any time.
	patience = time.Minute
	// beforeLease is for events that must happen before a lease of a minute ends: even on a machine
	// ten times slower they do, unless only the end of the lease causes them.
	beforeLease = 30 * time.Second
)

// starved is how much time a machine must take from a test before it may be the cause of a renewal that is missing.
const starved = 500 * time.Millisecond

// patient gives nodes a long timeout: otherwise a machine that stalls seems to have no majority.
var patient = redlock.WithNodeTimeout(ample)

var quietLog = slog.New(slog.DiscardHandler)

func check(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

func want(tb testing.TB, err error, all ...error) {
	tb.Helper()
	for _, w := range all {
		if !errors.Is(err, w) {
			tb.Fatalf("error is %v, want %v", err, w)
		}
	}
}

// locks returns a Client with its own connections, which is patient unless an option says otherwise. It is
// closed when the test ends.
func (s *set) locks(tb testing.TB, cfg dlock.Config, opts ...redlock.Option) *dlock.Client {
	tb.Helper()
	return locksOn(tb, s.dial(tb), cfg, append([]redlock.Option{patient}, opts...)...)
}

func locksOn(tb testing.TB, clients []redis.UniversalClient, cfg dlock.Config, opts ...redlock.Option) *dlock.Client {
	tb.Helper()
	cfg.DefaultTTL = cmp.Or(cfg.DefaultTTL, testenv.Lease)
	c, err := dlock.New(&cfg, dlock.WithBackend(redlock.New(clients, opts...)), dlock.WithAdmin())
	check(tb, err)
	tb.Cleanup(func() { _ = c.Close() })
	return c
}

func acquire(tb testing.TB, c *dlock.Client, key string, opts ...dlock.LockOption) *dlock.Guard {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	g, err := c.Acquire(ctx, key, opts...)
	check(tb, err)
	return g
}

func unlock(tb testing.TB, g *dlock.Guard) {
	tb.Helper()
	hazardtest.Unlock(tb, g)
}

// tryUnlock is unlock for any goroutine of a test: it returns the error.
func tryUnlock(tb testing.TB, g *dlock.Guard) error {
	tb.Helper()
	began := time.Now()
	err := g.Unlock(context.Background())
	if hazardtest.GaveUp(tb, err, began) {
		return nil
	}
	return err
}

// unlockKey is unlock for a key that Lock has locked.
func unlockKey(tb testing.TB, c *dlock.Client, key string) {
	tb.Helper()
	began := time.Now()
	err := c.Unlock(context.Background(), key)
	if !hazardtest.GaveUp(tb, err, began) {
		check(tb, err)
	}
}

// closeLocks closes a Client, and reports whether Close gave up, because the machine delayed it.
func closeLocks(tb testing.TB, c *dlock.Client) (gaveUp bool) {
	tb.Helper()
	began := time.Now()
	err := c.Close()
	gaveUp = hazardtest.GaveUp(tb, err, began)
	if !gaveUp {
		check(tb, err)
	}
	return gaveUp
}

// warm makes all nodes know the scripts, and opens the Client's connections.
func warm(tb testing.TB, c *dlock.Client) {
	tb.Helper()
	for range 3 {
		g := acquire(tb, c, "warm", dlock.WithTTL(time.Minute))
		check(tb, g.Extend(context.Background(), 2*time.Minute))
		unlock(tb, g)
	}
}

// stored returns what a node has under a lock, or "".
func (s *set) stored(tb testing.TB, i int, lock string) string {
	tb.Helper()
	v, err := s.direct[i].Get(context.Background(), lock).Result()
	if err != nil && !errors.Is(err, redis.Nil) {
		tb.Fatal(err)
	}
	return v
}

// holders returns how many nodes have something under a lock.
func (s *set) holders(tb testing.TB, lock string) (n int) {
	tb.Helper()
	for i := range s.servers {
		if s.servers[i].Running() && s.stored(tb, i, lock) != "" {
			n++
		}
	}
	return n
}

// left returns the locks that are stored anywhere: everything except sibling keys.
func (s *set) left(tb testing.TB) (all []string) {
	tb.Helper()
	for i, c := range s.direct {
		if !s.servers[i].Running() {
			continue
		}
		keys, err := c.Keys(context.Background(), "*").Result()
		check(tb, err)
		for _, k := range keys {
			if !strings.Contains(k, "\x01") {
				all = append(all, k)
			}
		}
	}
	return all
}

// calls reports whether a command calls a script on a lock.
func calls(cmd []string, script, lock string) bool {
	return len(cmd) > 3 && cmd[0] == "EVALSHA" && cmd[1] == redlock.Scripts[script] && cmd[3] == lock
}

// logCommands makes the servers log every command from now on.
func (s *set) logCommands(tb testing.TB) {
	tb.Helper()
	for _, c := range s.direct {
		check(tb, c.ConfigSet(tb.Context(), "slowlog-max-len", "10000").Err())
		check(tb, c.ConfigSet(tb.Context(), "slowlog-log-slower-than", "0").Err())
	}
}

// hasRun reports whether a node has carried out a script with a key since.
func (s *set) hasRun(tb testing.TB, node int, script, key string) bool {
	tb.Helper()
	log, err := s.direct[node].SlowLogGet(tb.Context(), -1).Result()
	check(tb, err)
	return slices.ContainsFunc(log, func(l redis.SlowLog) bool {
		return len(l.Args) > 3 && l.Args[1] == redlock.Scripts[script] && slices.Contains(l.Args[3:], key)
	})
}

// loaded waits until so many nodes know a script: the call that loads it has arrived there.
func (s *set) loaded(tb testing.TB, script string, nodes int) {
	tb.Helper()
	testenv.Eventually(tb, patience, fmt.Sprintf("%d nodes know %s", nodes, script), func() bool {
		known := 0
		for _, d := range s.direct {
			if d.ScriptExists(tb.Context(), redlock.Scripts[script]).Val()[0] {
				known++
			}
		}
		return known >= nodes
	})
}

// intercept sets a rule on every proxy.
func (s *set) intercept(rule func(node int, cmd []string) faultproxy.Action) {
	for i, p := range s.proxies {
		p.Intercept(func(cmd []string) faultproxy.Action { return rule(i, cmd) })
	}
}

func (s *set) heal() {
	for _, p := range s.proxies {
		p.Heal()
	}
}

// cut ends what nodes have not answered, for which Close would wait.
func (s *set) cut() {
	for _, p := range s.proxies {
		p.Cut()
	}
}

// soon polls for a condition that must be true after a fault has ended: within a second, and in any
// case before a lease of a minute has ended.
func soon(tb testing.TB, what string, cond func() bool) {
	tb.Helper()
	testenv.Eventually(tb, testenv.UnderStress(beforeLease, 1500*time.Millisecond), what, cond)
}

// elapse lets time pass where time itself is the subject.
func elapse(d time.Duration) { <-time.After(d) }
