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

// useLocks holds some locks for more than a lease, and takes and releases others meanwhile. A call that was not answered
// is excused only if most servers were silent during that call also on connections of the test's own.
func useLocks(t *testing.T, nodes []*servers.Redis, c *dlock.Client) {
	t.Helper()
	const ttl = 5 * time.Second
	ctx, cancel := context.WithTimeout(t.Context(), ttl+time.Second)
	defer cancel()
	silences := silencesOf(ctx, t, nodes)
	var held []*dlock.Guard
	for i := range 4 {
		g, err := c.Acquire(ctx, "held"+strconv.Itoa(i), dlock.WithTTL(ttl))
		if err != nil {
			t.Errorf("acquire: %v", err)
			return
		}
		held = append(held, g)
	}
	var wg sync.WaitGroup
	type failure struct {
		span
		err error
	}
	failures := make([][]failure, 8)
	for i := range failures {
		wg.Go(func() {
			used := 0
			for ; ctx.Err() == nil; <-time.After(5 * time.Millisecond) {
				began := time.Now()
				g, err := c.Acquire(ctx, fmt.Sprint("other", i))
				if err == nil {
					err = g.Unlock(context.WithoutCancel(ctx))
				}
				switch {
				case err == nil:
					used++
				case ctx.Err() == nil:
					failures[i] = append(failures[i], failure{span{began, time.Now()}, err})
				}
			}
			if used == 0 {
				t.Errorf("other %d was never locked", i)
			}
		})
	}
	wg.Wait()
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
	locks, err := dlock.NewRedis(c, &dlock.Config{})
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
	locks, err := dlock.NewRedlock(c, &dlock.Config{})
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
