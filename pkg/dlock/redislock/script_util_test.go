package redislock

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/ceyewan/genesis/internal/sim/simredis"
	"github.com/ceyewan/genesis/internal/testenv"
)

// scriptSecond is a second in which newcomers do not extend a queue: it is not a multiple of 16.
// Six digits of its microseconds are needed, and 42 has two.
const (
	scriptSecond = 1_700_000_005
	scriptStart  = scriptSecond*1_000_000 + 42
)

// A scriptLock is one lock on a real server. Its scripts run at a time that the test chooses, so
// that everything they store can be compared exactly.
type scriptLock struct {
	*testing.T
	client  *redis.Client
	n       names
	now     int64  // of the server, in microseconds
	channel string // that claims name
	gap     bool   // the lock is shared with plain clients
}

func newScriptLock(t *testing.T) *scriptLock {
	t.Helper()
	t.Parallel() // each has a server, and a clock, of its own
	client := testenv.Redis(t).Client()
	t.Cleanup(func() { _ = client.Close() })
	s := &scriptLock{T: t, client: client, now: scriptStart, channel: "-"}
	s.use("k")
	return s
}

// use continues with another lock.
func (s *scriptLock) use(key string) {
	s.Helper()
	n, err := (&redisDriver{}).namesOf(key)
	s.check(err)
	s.n, s.now = n, scriptStart
	s.do("DEL", s.n.counter) // which other locks may share
}

func (s *scriptLock) check(err error) {
	s.Helper()
	if err != nil && !errors.Is(err, redis.Nil) {
		s.Fatal(err)
	}
}

func (s *scriptLock) run(source string, keys []string, args ...any) any {
	s.Helper()
	reply, err := simredis.Run(context.Background(), s.client, s.now, source, keys, args...).Result()
	s.check(err)
	return reply
}

// do carries out one command at the time of the test.
func (s *scriptLock) do(words ...any) any {
	s.Helper()
	return s.run("return redis.call(unpack(ARGV))", nil, words...)
}

func scriptID(letter string) string { return strings.Repeat(letter, 32) }

// expandIDs replaces the short names of claims in tests: a letter stands for 32 of it, and a mark may
// follow.
func expandIDs(text string) string {
	words := strings.Split(text, " ")
	for i, w := range words {
		letter := strings.TrimRight(w, ".+")
		if len(letter) == 1 && len(w) <= 2 && letter >= "a" && letter <= "f" {
			words[i] = scriptID(letter) + w[1:]
		}
	}
	return strings.Join(words, " ")
}

func (s *scriptLock) equal(what, got, want string) {
	s.Helper()
	want = expandIDs(want)
	if got != want {
		s.Errorf("%s is %q, want %q", what, got, want)
	}
}

// acquire submits a claim and checks the answer. tokens is how many tokens it reserves, 0 to leave
// it out.
func (s *scriptLock) acquire(letter string, ttl, heartbeat, tokens int, want string) {
	s.Helper()
	keys := []string{s.n.lock, s.n.counter, s.n.queue, s.n.waiters, s.n.holders, s.n.tombstone(scriptID(letter))}
	if s.gap {
		keys = append(keys, s.n.gap)
	}
	args := []any{scriptID(letter), ttl, heartbeat, s.channel + ` {"of": "` + letter + `"}`}
	if tokens > 0 {
		args = append(args, tokens)
	}
	s.equal("the answer to "+letter, fmt.Sprint(s.run(acquireScript.Source, keys, args...)), want)
}

// release releases a claim in the usual way.
func (s *scriptLock) release(letter, want string) {
	s.Helper()
	keys := []string{s.n.lock, s.n.counter, s.n.queue, s.n.waiters, s.n.holders}
	got := fmt.Sprint(s.run(releaseScript.Source, keys, scriptID(letter)+unmarked))
	if strings.HasPrefix(got, scriptID(letter)) { // the value that the lock had
		got = expandIDs("held " + letter + " 0")
	}
	s.equal("the answer to "+letter, got, want)
}

// releaseWith releases a claim with all optional arguments.
func (s *scriptLock) releaseWith(letter string, tombstone, gap int, must, want string) {
	s.Helper()
	keys := []string{s.n.lock, s.n.counter, s.n.queue, s.n.waiters, s.n.holders, s.n.tombstone(scriptID(letter)), s.n.gap}
	s.equal("the answer to "+letter, fmt.Sprint(s.run(releaseScript.Source, keys, scriptID(letter)+unmarked, tombstone, gap, must)), want)
}

// renew renews claims of one process with a TTL of 20 s and a heartbeat of 2 s.
func (s *scriptLock) renew(letters string, want ...string) {
	s.Helper()
	want = append([]string{"echo"}, want...)
	s.equal("the answer", strings.Join(s.renewed(letters), " | "), strings.Join(want, " | "))
}

// renewed returns the answer to a renewal.
func (s *scriptLock) renewed(letters string) []string {
	s.Helper()
	keys := []string{s.n.lock, s.n.counter, s.n.queue, s.n.waiters, s.n.holders}
	if s.gap {
		keys = append(keys, s.n.gap)
	}
	args := []any{"echo", s.channel}
	for _, letter := range strings.Fields(letters) {
		args = append(args, scriptID(letter), 20_000, 2000)
	}
	return s.texts(s.run(renewQueueScript.Source, keys, args...))
}

func (s *scriptLock) texts(reply any) (texts []string) {
	s.Helper()
	list, ok := reply.([]any)
	if !ok {
		s.Fatalf("the reply is %v", reply)
	}
	for _, one := range list {
		texts = append(texts, fmt.Sprint(one))
	}
	return texts
}

// wait stores a waiter with this many microseconds left, and its arrival after the start.
func (s *scriptLock) wait(letter string, arrival, left int64, mark int, channel string) {
	s.Helper()
	s.do("ZADD", s.n.queue, scriptStart+arrival, expandIDs(letter))
	s.do("HSET", s.n.waiters, expandIDs(letter), fmt.Sprintf(`%d %d.%d 1 %d %s {"of": "%s"}`,
		s.now+left, scriptSecond, 42+arrival, mark, channel, letter))
	s.mark()
}

// mark marks the value of the lock, as a script does that stores a waiter.
func (s *scriptLock) mark() {
	s.Helper()
	if s.do("TYPE", s.n.lock) != "string" {
		return
	}
	if value, _ := s.do("GET", s.n.lock).(string); len(value) > 32 && value[32:33] == unmarked {
		s.do("SETRANGE", s.n.lock, 32, "+")
	}
}

// crowd stores many waiters, the first of which arrived at a time after the start. It calls the
// server directly, because the test's clock would slow it down, and in small steps.
func (s *scriptLock) crowd(n int, arrival, left int64) {
	s.Helper()
	const part = 5000
	for first := 0; first < n; first += part {
		s.run(`for i = ARGV[1], ARGV[2] - 1 do
  local id = string.format('%032x', i)
  server.call('ZADD', KEYS[1], string.format('%.0f', ARGV[3] + i), id)
  server.call('HSET', KEYS[2], id, ARGV[4] .. ' 1.1 1 0 - {}')
end`, []string{s.n.queue, s.n.waiters}, first, min(first+part, n), scriptStart+arrival, s.now+left)
	}
	s.mark()
}

// stored checks the value of the lock, and how many milliseconds are left of it.
func (s *scriptLock) stored(want string, left int64) {
	s.Helper()
	value, _ := s.do("GET", s.n.lock).(string)
	s.equal("the lock", value, want)
	s.expires(s.n.lock, left)
}

func (s *scriptLock) expires(key string, left int64) {
	s.Helper()
	if got := s.do("PTTL", key); got != left {
		s.Errorf("%q expires in %v ms, want %d", key, got, left)
	}
}

// lastToken checks the counter, which does not expire.
func (s *scriptLock) lastToken(want int64) {
	s.Helper()
	s.equal("the last token", fmt.Sprint(s.do("GET", s.n.counter)), fmt.Sprint(want))
	s.expires(s.n.counter, -1)
}

// queued checks the places: each has a letter and its arrival after the start.
func (s *scriptLock) queued(want string) {
	s.Helper()
	var got []string
	for _, z := range s.client.ZRangeWithScores(context.Background(), s.n.queue, 0, -1).Val() {
		got = append(got, fmt.Sprint(z.Member.(string)[:1], "+", int64(z.Score)-scriptStart))
	}
	s.equal("the queue", strings.Join(got, " "), want)
	n := s.client.HLen(context.Background(), s.n.waiters).Val()
	if n != int64(len(got)) {
		s.Errorf("%d wait and %d have records", len(got), n)
	}
}

// record checks the record of a waiter: the time that it has left, in microseconds, and everything
// after it.
func (s *scriptLock) record(letter string, left int64, want string) {
	s.Helper()
	got := s.client.HGet(context.Background(), s.n.waiters, scriptID(letter)).Val()
	s.equal("the record of "+letter, got, fmt.Sprint(s.now+left, " ", want))
}

// listen subscribes to a channel, which claims name from now on.
func (s *scriptLock) listen(channel string) *redis.PubSub {
	s.Helper()
	subscribe := s.client.Subscribe
	if strings.HasPrefix(channel, "{") {
		subscribe = s.client.SSubscribe
	}
	p := subscribe(context.Background(), channel)
	s.Cleanup(func() { _ = p.Close() })
	_, err := p.Receive(context.Background())
	s.check(err)
	s.channel = channel
	return p
}

// hears checks all messages since the last check. It publishes its own message after them, so that
// a missing message is noticed at once.
func (s *scriptLock) hears(p *redis.PubSub, want ...string) {
	s.Helper()
	publish := "PUBLISH"
	if strings.HasPrefix(s.channel, "{") {
		publish = "SPUBLISH"
	}
	s.do(publish, s.channel, "end")
	var got []string
	for {
		m, err := p.ReceiveMessage(context.Background())
		s.check(err)
		if m.Payload == "end" {
			break
		}
		got = append(got, strings.ReplaceAll(m.Payload, separator, " "))
	}
	s.equal("what is heard", strings.Join(got, " | "), strings.Join(want, " | "))
}
