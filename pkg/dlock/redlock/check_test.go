package redlock_test

import (
	"fmt"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/clog"
	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/redlock"
)

// level returns the level of the first finding with this name whose detail contains text.
func level(t *testing.T, c *dlock.Client, name, text string) dlock.Level {
	t.Helper()
	findings, err := c.Check(t.Context())
	check(t, err)
	for _, f := range findings {
		if f.Name == name && strings.Contains(f.Detail, text) {
			return f.Level
		}
	}
	t.Fatalf("no finding %s with %q in %v", name, text, findings)
	return dlock.LevelOK
}

func is(t *testing.T, got, want dlock.Level) {
	t.Helper()
	if got != want {
		t.Errorf("level is %v, want %v", got, want)
	}
}

func TestCheck(t *testing.T) {
	s := start(t, 3)
	c := s.locks(t, dlock.Config{})
	is(t, level(t, c, "nodes", "3 of 3"), dlock.LevelOK)
	is(t, level(t, c, "independence", "own"), dlock.LevelOK)
	is(t, level(t, c, "clocks", "apart"), dlock.LevelOK)
	is(t, level(t, c, "persistence", s.proxies[1].Addr()), dlock.LevelWarning)
	is(t, level(t, c, "eviction-policy", s.proxies[1].Addr()), dlock.LevelOK)
	check(t, s.direct[1].ConfigSet(t.Context(), "maxmemory-policy", "allkeys-lru").Err())
	check(t, s.direct[1].ConfigSet(t.Context(), "maxmemory", "100mb").Err())
	is(t, level(t, c, "eviction-policy", s.proxies[1].Addr()), dlock.LevelUnsafe)

	host, port, err := net.SplitHostPort(s.servers[0].Addr())
	check(t, err)
	check(t, s.direct[2].Do(t.Context(), "REPLICAOF", host, port).Err())
	is(t, level(t, c, "independence", s.proxies[2].Addr()), dlock.LevelUnsafe)
	check(t, s.servers[2].Kill())
	is(t, level(t, c, "nodes", "2 of 3"), dlock.LevelWarning)
	check(t, s.servers[1].Kill())
	is(t, level(t, c, "nodes", "1 of 3"), dlock.LevelUnsafe)
}

// Check detects one server behind three addresses.
func TestCheckFindsOneServerTwice(t *testing.T) {
	server := testenv.Redis(t)
	var clients []redis.UniversalClient
	for range 3 {
		c := server.ClientAt(testenv.Proxy(t, server.Addr()).Addr())
		defer c.Close()
		clients = append(clients, c)
	}
	is(t, level(t, locksOn(t, clients, dlock.Config{}, patient), "independence", "same server"), dlock.LevelUnsafe)
}

// A claim that only a minority has is shown as a waiter, and is not listed.
func TestInspectPartial(t *testing.T) {
	s := start(t, 3)
	c := s.locks(t, dlock.Config{DefaultTTL: time.Minute}) // no renewal fills the nodes meanwhile
	admin, err := c.Admin()
	check(t, err)
	g := acquire(t, c, "k")
	testenv.Eventually(t, patience, "all nodes have its token", func() bool { return s.agree(t, "k", g.Token()) })
	shows := func(phase dlock.Phase, listed int) {
		t.Helper()
		claims, err := admin.Inspect(t.Context(), "k")
		check(t, err)
		keys, _, err := admin.ListPage(t.Context(), "", "", 10)
		check(t, err)
		if len(claims) != 1 || claims[0].Phase != phase || claims[0].Token != g.Token() || len(keys) != listed {
			t.Errorf("shown are %v, listed %q", claims, keys)
		}
	}
	shows(dlock.PhaseHeld, 1)
	check(t, s.direct[0].Del(t.Context(), "k").Err())
	shows(dlock.PhaseHeld, 1)
	value := s.stored(t, 1, "k") // a majority has the claim, and not the token: another round is under way
	check(t, s.direct[1].Set(t.Context(), "k", strings.Replace(value, fmt.Sprint(" ", g.Token(), " "), " 0 ", 1), time.Minute).Err())
	shows(dlock.PhaseQueued, 1)
	check(t, s.direct[1].Del(t.Context(), "k").Err())
	shows(dlock.PhaseQueued, 0)
}

// The permissions that docs/backends/redlock.md names are enough.
func TestFewRights(t *testing.T) {
	t.Parallel()
	s := start(t, 3)
	var clients []redis.UniversalClient
	for i, server := range s.servers {
		words := strings.Fields("ACL SETUSER locks on >secret resetkeys resetchannels -@all " +
			"+eval +evalsha +get +mget +set +del +exists +pexpire +pttl +time +hget +hset +hdel +hgetall +zadd +zrem +zrange " +
			"+publish +subscribe +unsubscribe +pubsub|numsub +ping +info +scan +getrange ~p:* ~{p:* &dlock:*")
		var args []any
		for _, w := range words {
			args = append(args, w)
		}
		check(t, s.direct[i].Do(t.Context(), args...).Err())
		c := redis.NewClient(&redis.Options{
			Addr: server.Addr(), Username: "locks", Password: "secret", ContextTimeoutEnabled: true, DisableIdentity: true,
			MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
		})
		defer c.Close()
		clients = append(clients, c)
	}
	a, b := locksOn(t, clients, dlock.Config{Prefix: "p:"}, patient), locksOn(t, clients, dlock.Config{Prefix: "p:"}, patient)
	g := acquire(t, a, "k")
	done := make(chan error, 1)
	go func() { done <- b.Lock(t.Context(), "k") }()
	admin, err := a.Admin()
	check(t, err)
	testenv.Eventually(t, patience, "the waiter is seen", func() bool {
		claims, err := admin.Inspect(t.Context(), "k")
		return err == nil && len(claims) == 2
	})
	keys, _, err := admin.ListPage(t.Context(), "", "", 10)
	if err != nil || len(keys) != 1 {
		t.Errorf("listed %q, %v", keys, err)
	}
	check(t, g.Extend(t.Context(), 20*time.Second))
	unlock(t, g)
	check(t, <-done)
	_, err = a.Check(t.Context())
	check(t, err)
	for i, c := range s.direct {
		if n := c.Do(t.Context(), "ACL", "LOG").Val(); len(n.([]any)) > 0 {
			t.Errorf("node %d denied %v", i, n)
		}
	}
}

// The first lock logs what makes it unsafe, and nothing else. A Client asks once, and drops what is not answered in two seconds:
// if that was because the machine stalled, another Client is used.
func TestFirstUseWarns(t *testing.T) {
	t.Parallel()
	s := start(t, 3)
	check(t, s.direct[1].ConfigSet(t.Context(), "maxmemory-policy", "allkeys-lru").Err())
	check(t, s.direct[1].ConfigSet(t.Context(), "maxmemory", "100mb").Err())
	for warned := false; !warned; {
		text := new(lockedBuffer)
		log := clog.FromSlog(slog.New(slog.NewTextHandler(text, nil)))
		c, err := dlock.New(&dlock.Config{}, dlock.WithBackend(redlock.New(s.dial(t), patient)), dlock.WithLogger(log))
		check(t, err)
		began := time.Now()
		unlock(t, acquire(t, c, "k"))
		warns := func() int { return strings.Count(text.String(), "redis is not safe for locks") }
		for limit := time.Now().Add(5 * time.Second / 2); warns() == 0 && time.Now().Before(limit); {
			<-time.After(10 * time.Millisecond)
		}
		closeLocks(t, c) // which ends the check
		warned = warns() > 0
		if !warned && !testenv.Stalled(t, began, time.Second) {
			t.Fatalf("the log is %q", text)
		}
		if warned && (warns() != 1 || !strings.Contains(text.String(), "eviction-policy")) {
			t.Errorf("the log is %q", text)
		}
	}
}
