package redislock_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ceyewan/genesis/internal/servers"
	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/redislock"
)

// The tests TestA… and TestB… are named after the hazards that they make happen.

var abCtx = context.Background()

// abElapse lets time pass where time itself is the subject.
func abElapse(d time.Duration) { <-time.After(d) }

// abClient returns a Client as users make one. The end of the test closes it.
func abClient(t *testing.T, addr string, cfg dlock.Config, opts ...dlock.Option) *dlock.Client {
	t.Helper()
	return abClientOf(t, &redis.Options{Addr: addr, ContextTimeoutEnabled: true}, cfg, opts...)
}

func abClientOf(t *testing.T, o *redis.Options, cfg dlock.Config, opts ...dlock.Option) *dlock.Client {
	t.Helper()
	rdb := redis.NewClient(o)
	t.Cleanup(func() { _ = rdb.Close() })
	c, err := dlock.New(&cfg, append([]dlock.Option{dlock.WithBackend(redislock.New(rdb)), dlock.WithAdmin()}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// abDirect is a client that sees the server without faults.
func abDirect(t *testing.T, server *servers.Redis) *redis.Client {
	t.Helper()
	rdb := server.Client()
	t.Cleanup(func() { _ = rdb.Close() })
	return rdb
}

// abWarm makes the server know the scripts of acquiring, renewing and releasing,
// and the client have a connection.
func abWarm(t *testing.T, c *dlock.Client) {
	t.Helper()
	g := abAcquire(t, c, "warm")
	if err := g.Extend(abCtx, 20*time.Second); err != nil {
		t.Fatal(err)
	}
	abUnlock(t, g)
}

func abAcquire(t *testing.T, c *dlock.Client, key string, opts ...dlock.LockOption) *dlock.Guard {
	t.Helper()
	g, err := c.Acquire(abCtx, key, opts...)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func abUnlock(t *testing.T, g *dlock.Guard) {
	t.Helper()
	if err := g.Unlock(abCtx); err != nil {
		t.Fatal(err)
	}
}

func abWant(t *testing.T, err error, want ...error) {
	t.Helper()
	for _, w := range want {
		if !errors.Is(err, w) {
			t.Errorf("error is %v, want %v", err, w)
		}
	}
}

func abAlive(t *testing.T, g *dlock.Guard) {
	t.Helper()
	if g.Context().Err() != nil || g.Remaining() <= 0 {
		t.Errorf("%q is lost: %v", g.Key(), context.Cause(g.Context()))
	}
}

// abGet is what the server stores under a key, "" if nothing.
func abGet(t *testing.T, rdb *redis.Client, key string) string {
	t.Helper()
	v, err := rdb.Get(abCtx, key).Result()
	if err != nil && !errors.Is(err, redis.Nil) {
		t.Fatal(err)
	}
	return v
}

func abPTTL(t *testing.T, rdb *redis.Client, key string) time.Duration {
	t.Helper()
	d, err := rdb.PTTL(abCtx, key).Result()
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// abToken is the token of the stored holder, 0 if the lock is free.
func abToken(t *testing.T, rdb *redis.Client, lock string) int64 {
	t.Helper()
	_, rest, _ := strings.Cut(abGet(t, rdb, lock), " ")
	word, _, _ := strings.Cut(rest, " ")
	n, _ := strconv.ParseInt(word, 10, 64)
	return n
}

func abFence(lock string) string { return "{" + lock + "}\x01f" }

// abLeft lists the claims that are stored: locks, queues and their waiters. What
// may stay are last tokens and barred IDs.
func abLeft(t *testing.T, rdb *redis.Client) []string {
	t.Helper()
	all, err := rdb.Keys(abCtx, "*").Result()
	if err != nil {
		t.Fatal(err)
	}
	return slices.DeleteFunc(all, func(k string) bool {
		_, suffix, sibling := strings.Cut(k, "\x01")
		return sibling && (suffix == "f" || strings.HasPrefix(suffix, "b"))
	})
}

// An abKind is which script a command calls.
type abKind string

const (
	abAcquiring abKind = "acquire"
	abReleasing abKind = "release"
	abHolding   abKind = "hold"
	abRenewing  abKind = "renew"
	abLooking   abKind = "inspect"
	abOther     abKind = "other"
)

// abKindOf tells the scripts apart by what they are given: only an acquire brings an
// Info, only a release begins with an ID otherwise, only a renewal of what is held does
// without a queue, and only inspecting does without a fence.
func abKindOf(cmd []string) abKind {
	if len(cmd) < 3 || !strings.HasPrefix(strings.ToUpper(cmd[0]), "EVAL") {
		return abOther
	}
	n, err := strconv.Atoi(cmd[2])
	if err != nil || n > len(cmd)-3 {
		return abOther
	}
	keys, args := cmd[3:3+n], cmd[3+n:]
	has := func(words []string, part string) bool {
		return slices.ContainsFunc(words, func(w string) bool { return strings.Contains(w, part) })
	}
	switch {
	case has(keys, "\x01z") && has(args, `{"`):
		return abAcquiring
	case has(keys, "\x01z") && len(args) == 1 && (args[0] == "-inf" || strings.HasPrefix(args[0], "(")):
		return abLooking
	case has(keys, "\x01z") && len(args[0]) == 32:
		return abReleasing
	case has(keys, "\x01z"):
		return abRenewing
	case len(args) == 1+2*n:
		return abHolding
	}
	return abOther
}

// abIDs are the claims that a command names.
func abIDs(cmd []string) (ids []string) {
	for _, word := range cmd[min(3, len(cmd)):] {
		if len(word) == 32 && strings.Trim(word, "0123456789abcdef") == "" {
			ids = append(ids, word)
		}
	}
	return ids
}

// abHit takes an action for the next commands of a kind, and counts.
type abHit struct {
	kind   abKind
	action servers.Action
	most   int64
	seen   atomic.Int64 // of the kind
	hits   atomic.Int64
	first  atomic.Int64 // when the first was hit, in ns since abEpoch
}

var abEpoch = time.Now()

func (h *abHit) rule(cmd []string) servers.Action {
	if abKindOf(cmd) != h.kind {
		return servers.Forward
	}
	h.seen.Add(1)
	if n := h.hits.Add(1); n > h.most {
		h.hits.Add(-1)
		return servers.Forward
	}
	h.first.CompareAndSwap(0, int64(time.Since(abEpoch)))
	return h.action
}

// abHitNext installs an abHit in a proxy.
func abHitNext(p *servers.Proxy, n int, action servers.Action, kind abKind) *abHit {
	h := &abHit{kind: kind, action: action, most: int64(n)}
	p.Intercept(h.rule)
	return h
}

// An abMonitor is everything that a server carries out, in its order.
type abMonitor struct {
	conn net.Conn
	done chan struct{}
	mu   sync.Mutex
	seen []abSeen
}

// An abSeen is one command that the server carried out.
type abSeen struct {
	at  time.Duration // server time
	lua bool          // by a script
	cmd []string
}

// abWatch starts MONITOR.
func abWatch(t *testing.T, server *servers.Redis) *abMonitor {
	t.Helper()
	conn, err := net.Dial("tcp", server.Addr())
	if err != nil {
		t.Fatal(err)
	}
	m := &abMonitor{conn: conn, done: make(chan struct{})}
	if _, err := fmt.Fprint(conn, "MONITOR\r\n"); err != nil {
		t.Fatal(err)
	}
	in := bufio.NewReaderSize(conn, 1<<16)
	if line, err := in.ReadString('\n'); err != nil || !strings.HasPrefix(line, "+OK") {
		t.Fatalf("MONITOR: %q, %v", line, err)
	}
	go m.read(in)
	t.Cleanup(func() {
		_ = conn.Close()
		<-m.done
	})
	return m
}

func (m *abMonitor) read(in *bufio.Reader) {
	defer close(m.done)
	for {
		line, err := in.ReadString('\n')
		if err != nil {
			return
		}
		m.mu.Lock()
		m.seen = append(m.seen, abParse(line))
		m.mu.Unlock()
	}
}

// abParse reads `+1700000000.123456 [0 lua] "SET" "k" "v"`.
func abParse(line string) (s abSeen) {
	stamp, rest, _ := strings.Cut(strings.TrimPrefix(strings.TrimRight(line, "\r\n"), "+"), " ")
	sec, usec, _ := strings.Cut(stamp, ".")
	a, _ := strconv.ParseInt(sec, 10, 64)
	b, _ := strconv.ParseInt(usec, 10, 64)
	s.at = time.Duration(a)*time.Second + time.Duration(b)*time.Microsecond
	from, rest, _ := strings.Cut(rest, "] ")
	s.lua = strings.HasSuffix(from, " lua")
	for rest != "" {
		word, err := strconv.QuotedPrefix(rest)
		if err != nil {
			break
		}
		text, _ := strconv.Unquote(word)
		s.cmd = append(s.cmd, text)
		rest = strings.TrimPrefix(rest[len(word):], " ")
	}
	return s
}

var abMarks atomic.Int64

// all returns what was carried out until now.
func (m *abMonitor) all(t *testing.T, rdb *redis.Client) []abSeen {
	t.Helper()
	mark := "mark" + strconv.FormatInt(abMarks.Add(1), 10)
	if err := rdb.Echo(abCtx, mark).Err(); err != nil {
		t.Fatal(err)
	}
	var seen []abSeen
	testenv.Eventually(t, 20*time.Second, "the monitor catches up", func() bool {
		m.mu.Lock()
		defer m.mu.Unlock()
		for i := len(m.seen) - 1; i >= 0; i-- {
			if cmd := m.seen[i].cmd; len(cmd) == 2 && cmd[1] == mark {
				seen = slices.Clone(m.seen[:i])
				return true
			}
		}
		return false
	})
	return seen
}

// An abStore is something that locks guard: a value, and in a second place the
// same value without a fence.
type abStore struct{ rdb *redis.Client }

var abFencedWrite = redis.NewScript(`
redis.call('SET', KEYS[2], ARGV[2])
if tonumber(ARGV[1]) < tonumber(redis.call('HGET', KEYS[1], 'fence') or '0') then return 0 end
redis.call('HSET', KEYS[1], 'fence', ARGV[1], 'value', ARGV[2])
return 1`)

// write reports whether the fenced place took the value.
func (s abStore) write(key string, token int64, value string) (bool, error) {
	n, err := abFencedWrite.Run(abCtx, s.rdb, []string{"fenced:" + key, "plain:" + key}, token, value).Int()
	return n == 1, err
}

// An abLoss is when the ownership of a guard ends.
type abLoss struct {
	g  *dlock.Guard
	at chan time.Time
}

// abWatchLoss waits for the end of a guard's ownership from now on.
func abWatchLoss(g *dlock.Guard) abLoss {
	l := abLoss{g, make(chan time.Time, 1)}
	context.AfterFunc(g.Context(), func() { l.at <- time.Now() })
	return l
}

// when returns it, and fails the test if it does not come.
func (l abLoss) when(t *testing.T) time.Time {
	t.Helper()
	select {
	case at := <-l.at:
		return at
	case <-time.After(15 * time.Second):
		t.Fatalf("the loss of %q is not told", l.g.Key())
	}
	return time.Time{}
}
