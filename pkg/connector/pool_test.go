package connector_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ceyewan/genesis/internal/servers"
	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/connector"
	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// occupy blocks all connections of clients that have two each, until stop is called.
func occupy(t *testing.T, nodes []*servers.Redis, clients ...redis.UniversalClient) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for _, c := range clients {
		for range 2 {
			wg.Go(func() {
				for ctx.Err() == nil {
					_ = c.BLPop(ctx, time.Minute, "empty").Err()
				}
			})
		}
	}
	for _, n := range nodes {
		admin := n.Client()
		testenv.Eventually(t, patience, "all connections are blocked", func() bool {
			info, err := admin.Info(t.Context(), "clients").Result()
			return err == nil && strings.Contains(info, "blocked_clients:2")
		})
		_ = admin.Close()
	}
	return func() {
		cancel()
		for _, n := range nodes {
			admin := n.Client()
			_ = admin.RPush(context.Background(), "empty", 1, 2).Err()
			_ = admin.Close()
		}
		wg.Wait()
	}
}

const (
	useTTL      = time.Minute // longer than any machine stands still
	renewEvery  = 500 * time.Millisecond
	useRenewals = 10 // of each lock that is held
	useTurns    = 50 // of each caller meanwhile
)

// usePause is how long a caller waits between two turns.
var usePause = testenv.UnderStress(40*time.Millisecond, 5*time.Millisecond)

// useLocks holds some locks until each was renewed several times, and takes and releases others meanwhile. A call that was not
// answered is excused only if most servers were silent during that call also on connections of the test's own.
func useLocks(t *testing.T, nodes []*servers.Redis, c *dlock.Client) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	silences := silencesOf(ctx, t, nodes)
	held := holdLocks(ctx, t, c)
	renewed, failures := make(chan struct{}), make([][]failure, 8)
	var wg sync.WaitGroup
	for i := range failures {
		wg.Go(func() { failures[i] = takeTurns(ctx, t, c, fmt.Sprint("other", i), renewed) })
	}
	for _, g := range held {
		awaitRenewals(ctx, t, g)
	}
	close(renewed)
	wg.Wait()
	cancel()
	silent := silences()
	for _, failed := range failures {
		first := slices.IndexFunc(failed, func(f failure) bool {
			return testenv.UnderStress(false, true) || !errors.Is(f.err, dlock.ErrUnknownOutcome) || !mostSilent(silent, f.span)
		})
		if first >= 0 {
			t.Errorf("a call from %v: %v; the servers were silent from %v", failed[first].span, failed[first].err, silent)
		}
	}
	for _, g := range held {
		if g.Context().Err() != nil {
			t.Errorf("%s is lost: %v", g.Key(), context.Cause(g.Context()))
		}
		if err := g.Unlock(t.Context()); err != nil {
			t.Errorf("unlock %s: %v", g.Key(), err)
		}
	}
}

func holdLocks(ctx context.Context, t *testing.T, c *dlock.Client) (held []*dlock.Guard) {
	t.Helper()
	for i := range 4 {
		g, err := c.Acquire(ctx, "held"+strconv.Itoa(i))
		if err != nil {
			t.Errorf("acquire: %v", err)
			return held
		}
		held = append(held, g)
	}
	return held
}

// awaitRenewals waits until a lock was renewed several times: nothing else makes its lease longer.
func awaitRenewals(ctx context.Context, t *testing.T, g *dlock.Guard) {
	t.Helper()
	renewals := 0
	for before := g.Remaining(); renewals < useRenewals; <-time.After(10 * time.Millisecond) {
		if ctx.Err() != nil || g.Context().Err() != nil {
			t.Errorf("%s was renewed %d times", g.Key(), renewals)
			return
		}
		now := g.Remaining()
		if now > before {
			renewals++
		}
		before = now
	}
}

// A failure is a call that has failed.
type failure struct {
	span
	err error
}

// takeTurns takes and releases a lock, some times and until a channel is closed.
func takeTurns(ctx context.Context, t *testing.T, c *dlock.Client, key string, until <-chan struct{}) (failed []failure) {
	turns := 0
	for over := false; !over || turns < useTurns; <-time.After(usePause) {
		began := time.Now()
		g, err := c.Acquire(ctx, key)
		if err == nil {
			err = g.Unlock(context.WithoutCancel(ctx))
		}
		switch {
		case err == nil:
			turns++
		case ctx.Err() != nil:
			t.Errorf("%s was locked %d times: %v", key, turns, err)
			return failed
		default:
			failed = append(failed, failure{span{began, time.Now()}, err})
		}
		select {
		case <-until:
			over = true
		default:
		}
	}
	return failed
}

// A span is a time from one moment to another.
type span struct{ from, to time.Time }

func (s span) String() string {
	return s.from.Format("05.000") + " to " + s.to.Format("05.000")
}

// aSilence is half of the time after which a call is given up.
const aSilence = time.Second

// silencesOf asks servers on connections of their own until ctx ends, and then returns when each did not answer.
func silencesOf(ctx context.Context, t *testing.T, nodes []*servers.Redis) func() [][]span {
	t.Helper()
	var wg sync.WaitGroup
	silences := make([][]span, len(nodes))
	for i, n := range nodes {
		wg.Go(func() {
			admin := n.Client()
			defer func() { _ = admin.Close() }()
			for last := time.Now(); ctx.Err() == nil; <-time.After(50 * time.Millisecond) {
				err := admin.Ping(context.WithoutCancel(ctx)).Err()
				now := time.Now()
				if now.Sub(last) >= aSilence {
					silences[i] = append(silences[i], span{last, now})
				}
				if err == nil {
					last = now
				}
			}
		})
	}
	return func() [][]span {
		wg.Wait()
		return silences
	}
}

// mostSilent reports whether most servers were silent for long during a call.
func mostSilent(silences [][]span, call span) bool {
	silent := 0
	for _, spans := range silences {
		if slices.ContainsFunc(spans, func(s span) bool {
			from, to := s.from, s.to
			if from.Before(call.from) {
				from = call.from
			}
			if to.After(call.to) {
				to = call.to
			}
			return to.Sub(from) >= aSilence
		}) {
			silent++
		}
	}
	return silent > len(silences)/2
}

// Locks do not wait behind the blocking commands of the user's client.
func TestRedisLocksHaveTheirOwnPool(t *testing.T) {
	t.Parallel()
	server := testenv.Redis(t)
	c := newRedis(t, connector.RedisConfig{Addr: server.Addr(), PoolSize: 2})
	locks, err := dlock.NewRedis(c, &dlock.Config{DefaultTTL: useTTL, RenewInterval: renewEvery})
	if err != nil {
		t.Fatal(err)
	}
	stop := occupy(t, []*servers.Redis{server}, c.Client())
	useLocks(t, []*servers.Redis{server}, locks)
	stop()
	findings, err := locks.Check(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range findings {
		if f.Name == "pool" && f.Level != dlock.LevelOK {
			t.Errorf("%+v", f)
		}
	}
	if err := locks.Close(); err != nil {
		t.Error(err)
	}
}

func TestRedlockLocksHaveTheirOwnPools(t *testing.T) {
	t.Parallel()
	var nodes []*servers.Redis
	var addrs []string
	for range 3 {
		n := testenv.Redis(t)
		nodes, addrs = append(nodes, n), append(addrs, n.Addr())
	}
	c := newRedlock(t, connector.RedlockConfig{Addrs: addrs, PoolSize: 2})
	locks, err := dlock.NewRedlock(c, &dlock.Config{DefaultTTL: useTTL, RenewInterval: renewEvery})
	if err != nil {
		t.Fatal(err)
	}
	stop := occupy(t, nodes, c.Clients()...)
	useLocks(t, nodes, locks)
	stop()
	if err := locks.Close(); err != nil {
		t.Error(err)
	}
}

// The client of locks is closed with the connector, even if it is requested later.
func TestLockClientsAreClosed(t *testing.T) {
	server := testenv.Redis(t)
	for _, early := range []bool{true, false} {
		c, err := connector.NewRedis(&connector.RedisConfig{Addr: server.Addr()})
		if err != nil {
			t.Fatal(err)
		}
		opener := c.RedisLocks
		if early {
			locks := c.RedisLocks()
			opener = func() driver.Opener { return locks }
		}
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
		locks, err := dlock.New(&dlock.Config{MaxRetries: 1}, dlock.WithBackend(opener()))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := locks.TryLock(t.Context(), "k"); !errors.Is(err, redis.ErrClosed) {
			t.Errorf("early %v: %v, want a closed client", early, err)
		}
		_ = locks.Close()
	}
}
