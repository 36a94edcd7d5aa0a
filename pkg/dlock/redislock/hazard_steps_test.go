package redislock_test

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ceyewan/genesis/internal/faultproxy"
	"github.com/ceyewan/genesis/internal/servers"
	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/redislock"
)

// elapse lets time pass where time itself is the subject.
func elapse(d time.Duration) { <-time.After(d) }

// clientAt returns a Client whose locks last testenv.Lease. It is closed when the test ends.
func clientAt(t *testing.T, addr string, cfg dlock.Config, opts ...dlock.Option) *dlock.Client {
	t.Helper()
	return clientWith(t, &redis.Options{Addr: addr, ContextTimeoutEnabled: true}, cfg, opts...)
}

func clientWith(t *testing.T, o *redis.Options, cfg dlock.Config, opts ...dlock.Option) *dlock.Client {
	t.Helper()
	rdb := redis.NewClient(o)
	t.Cleanup(func() { _ = rdb.Close() })
	cfg.DefaultTTL = cmp.Or(cfg.DefaultTTL, testenv.Lease)
	c, err := dlock.New(&cfg, append([]dlock.Option{dlock.WithBackend(redislock.New(rdb)), dlock.WithAdmin()}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// directTo returns a client that reaches the server without faults.
func directTo(t testing.TB, server *servers.Redis) *redis.Client {
	t.Helper()
	rdb := server.Client()
	t.Cleanup(func() { _ = rdb.Close() })
	return rdb
}

// warm makes the server know the scripts of acquiring, renewing and releasing, and opens a
// connection of the client.
func warm(t *testing.T, c *dlock.Client) {
	t.Helper()
	g := acquire(t, c, "warm")
	if err := g.Extend(context.Background(), 20*time.Second); err != nil {
		t.Fatal(err)
	}
	unlock(t, g)
}

func expect(t *testing.T, err error, want ...error) {
	t.Helper()
	for _, w := range want {
		if !errors.Is(err, w) {
			t.Errorf("error is %v, want %v", err, w)
		}
	}
}

// storedAt returns what the server stores under a key, or "".
func storedAt(t *testing.T, rdb *redis.Client, key string) string {
	t.Helper()
	v, err := rdb.Get(context.Background(), key).Result()
	if err != nil && !errors.Is(err, redis.Nil) {
		t.Fatal(err)
	}
	return v
}

func leaseLeft(t *testing.T, rdb *redis.Client, key string) time.Duration {
	t.Helper()
	d, err := rdb.PTTL(context.Background(), key).Result()
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// storedToken returns the token of the stored holder, or 0 if the lock is free.
func storedToken(t *testing.T, rdb *redis.Client, lock string) int64 {
	t.Helper()
	_, rest, _ := strings.Cut(storedAt(t, rdb, lock), " ")
	word, _, _ := strings.Cut(rest, " ")
	n, _ := strconv.ParseInt(word, 10, 64)
	return n
}

func fenceOf(lock string) string { return redislock.CounterOf(lock) }

// A scriptKind says which script a command calls.
type scriptKind string

const (
	acquiring     scriptKind = "acquire"
	releasing     scriptKind = "release"
	renewingHeld  scriptKind = "hold"
	renewingQueue scriptKind = "renew"
	inspecting    scriptKind = "inspect"
	otherScript   scriptKind = "other"
)

// kindOf distinguishes the scripts by their arguments: only an acquire passes an Info, only a
// release otherwise begins with an ID and a dot, only a renewal of held claims has no queue, and only
// inspecting has a place in the queue as its argument.
func kindOf(cmd []string) scriptKind {
	if len(cmd) < 3 || !strings.HasPrefix(strings.ToUpper(cmd[0]), "EVAL") {
		return otherScript
	}
	n, err := strconv.Atoi(cmd[2])
	if err != nil || n > len(cmd)-3 {
		return otherScript
	}
	keys, args := cmd[3:3+n], cmd[3+n:]
	has := func(words []string, part string) bool {
		return slices.ContainsFunc(words, func(w string) bool { return strings.Contains(w, part) })
	}
	switch {
	case has(keys, "\x01y") && has(args, `{"`):
		return acquiring
	case has(keys, "\x01y") && len(args) == 1 && (args[0] == "-inf" || strings.HasPrefix(args[0], "(")):
		return inspecting
	case has(keys, "\x01y") && len(args[0]) == 33:
		return releasing
	case has(keys, "\x01y"):
		return renewingQueue
	case len(args) == 1+2*n:
		return renewingHeld
	}
	return otherScript
}

// claimIDs returns the claims that a command names.
func claimIDs(cmd []string) (ids []string) {
	for _, word := range cmd[min(3, len(cmd)):] {
		if word, _, ok := strings.Cut(word, "."); ok && len(word) == 32 { // of a release
			ids = append(ids, word)
		}
		if len(word) == 32 && strings.Trim(word, "0123456789abcdef") == "" {
			ids = append(ids, word)
		}
	}
	return ids
}

// scriptHits takes an action for the next commands of a kind, and counts them.
type scriptHits struct {
	kind   scriptKind
	action faultproxy.Action
	most   int64
	seen   atomic.Int64 // of the kind
	hits   atomic.Int64
	first  atomic.Int64 // when the first was hit, in ns since epoch
}

var epoch = time.Now()

func (h *scriptHits) rule(cmd []string) faultproxy.Action {
	if kindOf(cmd) != h.kind {
		return faultproxy.Forward
	}
	h.seen.Add(1)
	if n := h.hits.Add(1); n > h.most {
		h.hits.Add(-1)
		return faultproxy.Forward
	}
	h.first.CompareAndSwap(0, int64(time.Since(epoch)))
	return h.action
}

// hitNext installs a scriptHits in a proxy.
func hitNext(p *faultproxy.Proxy, n int, action faultproxy.Action, kind scriptKind) *scriptHits {
	h := &scriptHits{kind: kind, action: action, most: int64(n)}
	p.Intercept(h.rule)
	return h
}

// A guardedValue is something that locks guard: a value with a fence, and the same value in a
// second place without one.
type guardedValue struct{ rdb *redis.Client }

var fencedWrite = redis.NewScript(`
redis.call('SET', KEYS[2], ARGV[2])
if tonumber(ARGV[1]) < tonumber(redis.call('HGET', KEYS[1], 'fence') or '0') then return 0 end
redis.call('HSET', KEYS[1], 'fence', ARGV[1], 'value', ARGV[2])
return 1`)

// write reports whether the fenced place accepted the value.
func (s guardedValue) write(key string, token int64, value string) (bool, error) {
	n, err := fencedWrite.Run(context.Background(), s.rdb, []string{"fenced:" + key, "plain:" + key}, token, value).Int()
	return n == 1, err
}

// A loss is when the ownership of a guard ends.
type loss struct {
	g  *dlock.Guard
	at chan time.Time
}

// watchLoss waits for the end of a guard's ownership from now on.
func watchLoss(g *dlock.Guard) loss {
	l := loss{g, make(chan time.Time, 1)}
	context.AfterFunc(g.Context(), func() { l.at <- time.Now() })
	return l
}

// when returns the time of the loss, and fails the test if there is none.
func (l loss) when(t *testing.T) time.Time {
	t.Helper()
	select {
	case at := <-l.at:
		return at
	case <-time.After(time.Minute):
		t.Fatalf("the loss of %q is not told", l.g.Key())
	}
	return time.Time{}
}
