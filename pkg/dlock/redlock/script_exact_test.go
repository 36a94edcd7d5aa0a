package redlock

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/ceyewan/genesis/internal/sim/simredis"
	"github.com/ceyewan/genesis/pkg/dlock/internal/redisnode"
)

// The time at which a script test begins. It needs all digits of its microseconds.
const (
	scriptSecond = 1_700_000_005
	scriptStart  = scriptSecond*1_000_000 + 42
)

// An exactNode is a node whose scripts run at a time that the test chooses, so that
// everything they store can be compared exactly. A claim is named by one letter.
type exactNode struct {
	*one
	now int64 // microseconds
}

func startExact(t *testing.T) *exactNode {
	t.Helper()
	return &exactNode{startOne(t), scriptStart}
}

// startEarly begins at a time before every token of a test, so that each of them may be proposed.
func startEarly(t *testing.T) *exactNode {
	t.Helper()
	return &exactNode{startOne(t), 42}
}

func letterID(letter string) string { return strings.Repeat(letter, 32) }

func (e *exactNode) run(source string, keys []string, args ...any) any {
	e.Helper()
	reply, err := simredis.Run(context.Background(), e.node.client, e.now, source, keys, args...).Result()
	if err != nil && !errors.Is(err, redis.Nil) {
		e.Fatal(err)
	}
	return reply
}

// do carries out one command at the time of the test.
func (e *exactNode) do(words ...any) any {
	e.Helper()
	return e.run("return redis.call(unpack(ARGV))", nil, words...)
}

func (e *exactNode) equal(what string, got, want any) {
	e.Helper()
	words := strings.Split(fmt.Sprint(want), " ")
	for i, w := range words {
		if len(w) == 1 && w >= "a" && w <= "f" {
			words[i] = letterID(w)
		}
	}
	if text := strings.Join(words, " "); fmt.Sprint(got) != text {
		e.Errorf("%s is %q, want %q", what, fmt.Sprint(got), text)
	}
}

// replies runs a script and checks the words of the reply.
func (e *exactNode) replies(s *redisnode.Script, keys []string, want string, args ...any) {
	e.Helper()
	got := fmt.Sprint(e.run(s.Source, keys, args...))
	e.equal("the answer", strings.TrimSpace(strings.Trim(got, "[]")), strings.TrimSpace(want))
}

// acquire submits a claim with a TTL of 10 s.
func (e *exactNode) acquire(letter string, round int, token int64, heartbeat int, want string) {
	e.Helper()
	e.propose(letter, round, token, heartbeat, 0, want)
}

// propose is acquire with a proposal. An accepted proposal and a candidate come with the time.
func (e *exactNode) propose(letter string, round int, token int64, heartbeat int, proposal int64, want string) {
	e.Helper()
	if token == 0 && (strings.HasPrefix(want, "ours ") || strings.HasPrefix(want, "held ")) {
		want = fmt.Sprintf("%s %d", want, e.now)
	}
	id := letterID(letter)
	e.replies(acquireScript, []string{e.n.lock, e.n.fence, e.n.tombstone(id), e.n.waiters, e.n.queue, e.n.turn}, want, id, round, 10_000, token, heartbeat, "{"+letter+"}", proposal, "-", 0, 1)
}

func (e *exactNode) confirm(letter string, round int, token int64, want string) {
	e.Helper()
	e.replies(confirmScript, []string{e.n.lock, e.n.fence, e.n.waiters, e.n.queue}, want, letterID(letter), round, token, e.n.channel)
}

func (e *exactNode) release(letter string, tombstone, round int, must, want string) {
	e.Helper()
	id := letterID(letter)
	e.replies(releaseScript, e.n.releaseKeys(id), want, id, tombstone, round, must, e.n.channel, 0, 1000)
}

// stored checks the value of the lock, and how many milliseconds are left of it.
func (e *exactNode) stored(want string, left int64) {
	e.Helper()
	value, _ := e.do("GET", e.n.lock).(string)
	e.equal("the lock", value, want)
	e.expires(e.n.lock, left)
}

func (e *exactNode) expires(key string, left int64) {
	e.Helper()
	e.equal("the time to live of "+key, e.do("PTTL", key), left)
}

// highest checks the highest token, which is kept for this many milliseconds.
func (e *exactNode) highest(token, left int64) {
	e.Helper()
	e.equal("the highest token", e.do("GET", e.n.fence), token)
	e.expires(e.n.fence, left)
}

// waiter checks what is stored about a waiter, or "" for nothing.
func (e *exactNode) waiter(letter, want string) {
	e.Helper()
	text, _ := e.do("HGET", e.n.waiters, letterID(letter)).(string)
	e.equal("the waiter "+letter, text, want)
}

const day = 86_400_000

// A candidate is greater than every token that won here and than the time before: a clock that was
// set back does not lower it.
func TestScriptCandidates(t *testing.T) {
	e := startExact(t)
	for last, want := range map[int64]int64{
		0: scriptStart, scriptStart - 1: scriptStart, scriptStart: scriptStart + 1, scriptStart + 1e9: scriptStart + 1e9 + 1,
	} {
		e.do("DEL", e.n.lock, e.n.fence)
		if last > 0 {
			e.do("SET", e.n.fence, last)
		}
		e.acquire("a", 1, 0, 0, fmt.Sprintf("ours a %d", want))
		e.stored(fmt.Sprintf("a 0 %d.42 1 {a}", scriptSecond), 10_000)
		if last > 0 {
			e.highest(last, -1) // a candidate has not won
		}
	}
	e.do("DEL", e.n.lock, e.n.fence)
	e.now = -5 // before the epoch even: tokens are positive
	e.acquire("a", 1, 0, 0, "ours a 1")
}

// A claim that is already stored takes the new round, and its lease starts again.
func TestScriptLaterRound(t *testing.T) {
	e := startExact(t)
	e.acquire("a", 2, 0, 0, fmt.Sprintf("ours a %d", e.now))
	e.now += 1_000_000
	e.acquire("a", 1, 0, 0, "stale a 0")
	e.acquire("a", 1, 500, 0, "stale a 0")
	e.stored(fmt.Sprintf("a 0 %d.42 2 {a}", scriptSecond), 9000)
	e.acquire("a", 2, 0, 0, fmt.Sprintf("ours a %d", e.now))
	e.acquire("a", 3, 0, 0, fmt.Sprintf("ours a %d", e.now))
	e.stored(fmt.Sprintf("a 0 %d.42 3 {a}", scriptSecond), 10_000)
	e.do("SET", e.n.lock, letterID("a"), "PX", 5)
	e.acquire("a", 4, 0, 0, fmt.Sprintf("ours a %d", e.now))
	e.stored(fmt.Sprintf("a 0 %d.42 4 {a}", scriptSecond+1), 10_000)
}

// A node that missed that a claim has won stores it with its token. A longer lease stays.
func TestScriptFills(t *testing.T) {
	e := startExact(t)
	e.acquire("a", 1, 100, 0, "ours a 100")
	e.stored(fmt.Sprintf("a 100 %d.42 1 {a}", scriptSecond), 10_000)
	e.highest(100, day)
	e.now += 1_000_000
	e.acquire("a", 2, 100, 0, "ours a 100")
	e.stored(fmt.Sprintf("a 100 %d.42 2 {a}", scriptSecond), 10_000)
	e.highest(100, day-1000) // it was known
	e.do("PEXPIRE", e.n.lock, 10_001)
	e.acquire("a", 3, 101, 0, "ours a 101")
	e.stored(fmt.Sprintf("a 101 %d.42 3 {a}", scriptSecond), 10_001)
	e.highest(101, day)
	e.do("SET", e.n.fence, 1000)
	e.acquire("a", 4, 102, 0, "ours a 102")
	e.highest(1000, -1)
	e.do("DEL", e.n.lock)
	e.acquire("b", 1, 99, 0, "ours b 99")
	e.highest(1000, -1)
	e.do("DEL", e.n.lock, e.n.fence)
	e.acquire("b", 1, 1, 0, "ours b 1")
	e.highest(1, day)
}

// A claim on a taken lock learns the owner. If it waits, that is recorded.
func TestScriptTaken(t *testing.T) {
	e := startExact(t)
	e.acquire("a", 1, 0, 0, fmt.Sprintf("ours a %d", e.now))
	e.now += 1_000_000
	e.acquire("b", 1, 0, 0, "taken b 0 a 9000")
	e.waiter("b", "")
	e.acquire("b", 1, 0, 3000, "taken b 0 a 9000")
	e.waiter("b", fmt.Sprintf("%d %d.42 1 - {b}", e.now+3_000_000, scriptSecond+1))
	e.expires(e.n.waiters, 60_000)
	e.now += 1_000_000
	e.acquire("b", 2, 0, 2500, "taken b 0 a 8000")
	e.waiter("b", fmt.Sprintf("%d %d.42 1 - {b}", e.now+2_500_000, scriptSecond+1))
	e.expires(e.n.waiters, 60_000)
	e.do("HSET", e.n.waiters, letterID("b"), "damaged")
	e.acquire("b", 2, 0, 2500, "taken b 0 a 8000")
	e.waiter("b", fmt.Sprintf("%d %d.42 1 - {b}", e.now+2_500_000, scriptSecond+2))
	e.stored(fmt.Sprintf("a 0 %d.42 1 {a}", scriptSecond), 8000)
}

// One of 64 newcomers, by its ID, looks for waiters whose heartbeat has ended, however many there are: else each newcomer would, while their number
// stays the same.
func TestScriptForgetsDeadWaiters(t *testing.T) {
	e := startExact(t)
	e.do("SET", e.n.lock, "x")
	dead := func() int64 {
		e.Helper()
		return e.do("HEXISTS", e.n.waiters, "dead").(int64)
	}
	waits := func(id string) {
		e.Helper()
		e.do("HSET", e.n.waiters, "dead", fmt.Sprint(e.now, " 1.1 1 - {}"))
		e.do("ZADD", e.n.queue, 1, "dead")
		e.replies(waitScript, []string{e.n.tombstone("x"), e.n.waiters, e.n.queue}, "echo waits", "echo", id, 3000, "{c}", "", 0)
	}
	e.do("HSET", e.n.waiters, "alive", fmt.Sprint(e.now+1, " 1.1 1 - {}"), "damaged", "x")
	looks := 0
	for i := range 256 {
		waits(fmt.Sprintf("%02x", i) + letterID("0")[2:])
		if dead() == 0 {
			looks++
			e.equal("the place of the dead", e.do("ZSCORE", e.n.queue, "dead"), "<nil>")
			e.equal("the damaged", e.do("HEXISTS", e.n.waiters, "damaged"), 0)
		}
	}
	e.equal("how many have looked", looks, 256/64)
	e.equal("the living", e.do("HEXISTS", e.n.waiters, "alive"), 1)
	waits(letterID("0")) // it is no newcomer
	e.equal("the dead", dead(), 1)
	e.now += 3_000_000
	waits("01" + letterID("1")[2:])
	e.equal("how many are shown", e.do("HLEN", e.n.waiters), 1)
}

// Confirming gives a claim its token, keeps its lease, and notifies the waiters.
func TestScriptConfirms(t *testing.T) {
	e := startExact(t)
	p := e.subscribe()
	e.acquire("a", 1, 0, 0, fmt.Sprintf("ours a %d", e.now))
	e.do("HSET", e.n.waiters, letterID("a"), "x", letterID("b"), "y")
	e.now += 1_000_000
	e.confirm("b", 1, 100, "lost b 0")
	e.confirm("a", 2, 100, "lost a 0")
	e.confirm("a", 1, 100, "held a 100")
	e.stored(fmt.Sprintf("a 100 %d.42 1 {a}", scriptSecond), 9000)
	e.highest(100, day)
	e.waiter("a", "")
	e.waiter("b", "y")
	e.hears(p, "taken 100")
	e.now += 1_000_000
	e.confirm("a", 1, 100, "held a 100") // again, by a repetition
	e.highest(100, day-1000)
	e.hears(p)
	e.confirm("a", 1, 99, "higher a 100")
	e.do("SET", e.n.fence, 101)
	e.confirm("a", 1, 101, "higher a 101")
	e.do("DEL", e.n.fence)
	e.confirm("a", 1, 1, "held a 1")
	e.hears(p, "taken 1")
	e.do("DEL", e.n.lock)
	e.confirm("a", 1, 200, "lost a 0")
}

func (e *exactNode) subscribe() *redis.PubSub {
	e.Helper()
	p := e.node.client.Subscribe(context.Background(), e.n.channel)
	e.Cleanup(func() { _ = p.Close() })
	if _, err := p.Receive(context.Background()); err != nil {
		e.Fatal(err)
	}
	return p
}

// hears checks all messages since the last check. It publishes its own message after them, so that
// a missing message is noticed at once.
func (e *exactNode) hears(p *redis.PubSub, want ...string) {
	e.Helper()
	e.do("PUBLISH", e.n.channel, "end")
	var got []string
	for {
		m, err := p.ReceiveMessage(context.Background())
		if err != nil {
			e.Fatal(err)
		}
		if m.Payload == "end" {
			break
		}
		got = append(got, strings.ReplaceAll(m.Payload, redisnode.Separator, " "))
	}
	e.equal("what is heard", strings.Join(got, " | "), strings.Join(want, " | "))
}

// A release removes what its round may have stored, and publishes the end of a held lock.
func TestScriptReleases(t *testing.T) {
	e := startExact(t)
	e.acquire("a", 2, 0, 0, fmt.Sprintf("ours a %d", e.now))
	e.release("b", 0, -1, "", "gone b 0 0")
	e.release("a", 0, 1, "", "gone a 0 0")
	e.stored(fmt.Sprintf("a 0 %d.42 2 {a}", scriptSecond), 10_000)
	e.release("a", 0, 2, "", "held a 0 0")
	e.stored("", -2)
	e.acquire("a", 2, 100, 0, "ours a 100")
	e.release("a", 0, 3, "", "held a 100 0")
	if stats := e.node.client.Info(context.Background(), "commandstats").Val(); strings.Contains(stats, "cmdstat_publish") {
		t.Error("there is no subscriber, and yet it was published")
	}
	p := e.subscribe()
	e.acquire("a", 2, 100, 0, "ours a 100")
	e.release("a", 0, -1, "", "held a 100 0") // no claim waits any more
	e.hears(p)
	e.acquire("a", 2, 100, 0, "ours a 100")
	e.do("HSET", e.n.waiters, letterID("b"), "") // which cannot be told to try
	e.release("a", 0, -1, "", "held a 100 1")
	e.hears(p, "free 100 1")
	e.acquire("a", 2, 0, 0, "ours a "+fmt.Sprint(e.now))
	e.release("a", 0, -1, "", "held a 0 0") // it had not won: no waiter needs the message
	e.hears(p)
	e.do("SET", e.n.lock, letterID("a"))
	e.release("a", 0, 5, "", "gone a 0 0")
	e.release("a", 0, -1, "", "held a 0 0")
	e.do("RPUSH", e.n.lock, "x")
	e.release("a", 0, -1, "", "gone a 0 0")
	e.equal("a list of another program", e.do("LLEN", e.n.lock), 1)
	e.expires(e.n.tombstone(letterID("a")), -2)
}

// A user who may not count subscribers publishes to one.
func TestScriptReleasesWithFewRights(t *testing.T) {
	e := startExact(t)
	e.acquire("a", 1, 100, 0, "ours a 100")
	e.do("HSET", e.n.waiters, letterID("b"), "")
	p := e.subscribe()
	ctx := context.Background()
	err := e.node.client.Do(ctx, "ACL", "SETUSER", "few", "on", ">x", "~*", "&*", "+@all", "-pubsub").Err()
	if err != nil {
		t.Fatal(err)
	}
	all := e.node.client
	few := redis.NewClient(&redis.Options{Addr: all.Options().Addr, Username: "few", Password: "x"})
	defer few.Close()
	e.node.client = few
	e.release("a", 0, -1, "", "held a 100 1")
	e.node.client = all
	e.hears(p, "free 100 1")
}

// With a token that must match, nothing else is removed, and nothing else gets a tombstone.
func TestScriptEvicts(t *testing.T) {
	e := startExact(t)
	tombstone := e.n.tombstone(letterID("a"))
	e.acquire("a", 1, 100, 0, "ours a 100")
	e.release("a", 7000, -1, "99", "gone a 0 0")
	e.release("a", 7000, -1, "0", "gone a 0 0")
	e.expires(tombstone, -2)
	e.release("a", 7000, -1, "100", "held a 100 0")
	e.expires(tombstone, 7000)
	e.acquire("a", 1, 100, 0, "tombstoned a 0")
	e.now += 7_000_000
	e.acquire("a", 1, 0, 0, fmt.Sprintf("ours a %d", e.now))
	e.release("a", 0, -1, "0", "held a 0 0")
	e.expires(tombstone, -2)
}

// A waiting claim is no longer shown once it is released, unless only one round is released.
func TestScriptReleasesWaiters(t *testing.T) {
	e := startExact(t)
	show := func() { e.do("HSET", e.n.waiters, letterID("a"), "x", letterID("b"), "y") }
	show()
	e.release("a", 6000, 3, "", "gone a 0 0")
	e.expires(e.n.tombstone(letterID("a")), 6000)
	e.expires(e.n.waiters, -1)
	e.waiter("a", "x")
	e.release("a", 0, -1, "5", "gone a 0 0")
	e.waiter("a", "x")
	e.replies(releaseScript, e.n.releaseKeys(letterID("a")), "queued a 0 0", letterID("a"), 0, 3, "", e.n.channel, "1", 1000)
	e.waiter("a", "")
	show()
	e.release("a", 0, -1, "0", "queued a 0 0")
	e.waiter("a", "")
	show()
	e.do("DEL", e.n.tombstone(letterID("a")))
	e.release("a", 6000, -1, "0", "queued a 0 0")
	e.expires(e.n.tombstone(letterID("a")), 6000)
	show()
	e.release("a", 0, -1, "", "queued a 0 0")
	e.do("DEL", e.n.tombstone(letterID("a")))
	e.acquire("a", 1, 100, 0, "ours a 100")
	show()
	e.release("a", 0, -1, "", "held a 100 0")
	e.waiter("a", "")
	e.waiter("b", "y")
}

// Renewals of several claims: none is shortened unless requested, and a node that has missed that a
// claim won gets its token.
func TestScriptRenews(t *testing.T) {
	e := startExact(t)
	renew := func(want string, lock string, ttl int, token int64, shorten int) {
		e.Helper()
		e.replies(renewScript, []string{lock, e.n.fence}, "echo "+want, "echo", letterID("a"), ttl, token, shorten, 7)
	}
	renew("", "none", 10_000, 100, 0)
	e.do("RPUSH", "list", "x")
	renew("-", "list", 10_000, 100, 0)
	e.acquire("a", 1, 100, 0, "ours a 100")
	renew("100", e.n.lock, 20_000, 100, 0)
	e.expires(e.n.lock, 20_000)
	renew("100", e.n.lock, 20_001, 100, 0)
	e.expires(e.n.lock, 20_001)
	renew("100", e.n.lock, 5000, 100, 0)
	e.expires(e.n.lock, 20_001)
	renew("100", e.n.lock, 5000, 100, 1)
	e.expires(e.n.lock, 5000)
	renew("100", e.n.lock, 6000, 100, 1)
	e.expires(e.n.lock, 6000)
	renew("101", e.n.lock, 6000, 101, 0)
	e.stored(fmt.Sprintf("a 101 %d.42 7 {a}", scriptSecond), 6000)
	e.highest(101, day)
	e.release("a", 0, 6, "", "gone a 0 0") // of a round that was lost
	e.do("SET", e.n.lock, letterID("a"), "PX", 1000)
	renew("0", e.n.lock, 2000, 102, 0)
	e.stored("a", 2000)
	e.highest(101, day)
	e.do("SET", e.n.lock, letterID("b"), "PX", 1000)
	renew("-", e.n.lock, 2000, 102, 0)
	e.stored("b", 1000)
}

// A claim that has won in its second round, with the token that this node accepted in the first: the renewal stores
// the second round, so that the removal of the first one no longer takes the node's vote. It sets back no later round.
func TestScriptRenewalStoresTheRoundThatWon(t *testing.T) {
	e := startEarly(t)
	e.propose("a", 1, 0, 0, 500, "held a 500")
	renew := func(round int) {
		e.Helper()
		e.replies(renewScript, []string{e.n.lock, e.n.fence}, "echo 500", "echo", letterID("a"), 10_000, 500, 0, round)
	}
	renew(2)
	e.stored("a 500 0.42 2 {a}", 10_000)
	e.release("a", 0, 1, "", "gone a 0 0")
	e.acquire("a", 10, 500, 0, "ours a 500") // a node that lacked the claim was filled
	renew(2)
	e.stored("a 500 0.42 10 {a}", 10_000)
	e.highest(500, day)
}

// An error that concerns one claim is the answer for that claim only: here another program has written its highest token.
func TestScriptRenewsTheOthersAfterAnError(t *testing.T) {
	e := startExact(t)
	var keys []string
	args := []any{"echo"}
	for i, name := range []string{"x", "y", "z"} {
		n := (&redDriver{}).namesOf(name)
		id := letterID([]string{"a", "b", "c"}[i])
		e.do("SET", n.lock, id+" 100 1.1 1 {}", "PX", 1000)
		keys = append(keys, n.lock, n.fence)
		args = append(args, id, 10_000, 100, 0, 1)
	}
	e.do("RPUSH", keys[3], "x")
	got := e.run(renewScript.Source, keys, args...).([]any)
	e.equal("the first answer", got[1], "100")
	e.equal("the third answer", got[3], "100")
	text, failed := strings.CutPrefix(got[2].(string), "!")
	if err := redisnode.ReplyError(text); !failed || !errors.Is(err, ErrNotALock) {
		t.Errorf("the second answer is %q", got[2])
	}
	e.expires("x", 10_000)
	e.expires("z", 10_000)
}

// Each claim of a renewal has its own answer, lock and lease.
func TestScriptRenewsSeveral(t *testing.T) {
	e := startExact(t)
	var keys []string
	args := []any{"echo"}
	for i, name := range []string{"x", "y", "z"} {
		n := (&redDriver{}).namesOf(name)
		id := letterID([]string{"a", "b", "c"}[i])
		e.do("SET", n.lock, fmt.Sprintf("%s %d 1.1 1 {}", id, 100+i), "PX", 1000)
		keys = append(keys, n.lock, n.fence)
		args = append(args, id, 10_000+i, []int{100, 200, 300}[i], i%2, 11+i)
	}
	e.do("SET", "y", letterID("b")+" 0 1.1 1 {}", "PX", 50_000) // which is shortened
	e.replies(renewScript, keys, "echo 100 200 300", args...)
	for i, name := range []string{"x", "y", "z"} {
		n := (&redDriver{}).namesOf(name)
		e.expires(n.lock, int64(10_000+i))
		e.equal("the round of "+name, strings.Fields(e.do("GET", n.lock).(string))[3], []string{"11", "12", "13"}[i])
		e.equal("the fence of "+name, e.do("GET", n.fence), []string{"100", "200", "300"}[i])
	}
}

// Waiting claims are recorded, each under its own lock, and evicted ones are reported.
func TestScriptWaits(t *testing.T) {
	e := startExact(t)
	var keys []string
	args := []any{"echo"}
	var all []names
	for i, letter := range []string{"a", "b", "c"} {
		n := (&redDriver{}).namesOf("lock" + letter)
		all = append(all, n)
		keys = append(keys, n.tombstone(letterID(letter)), n.waiters, n.queue)
		args = append(args, letterID(letter), 1000*(i+1), "{"+letter+"}", "", 0)
	}
	e.do("SET", keys[3], "1")
	e.replies(waitScript, keys, "echo waits tombstoned waits", args...)
	for i, want := range []string{
		fmt.Sprintf("%d %d.42 1 - {a}", e.now+1_000_000, scriptSecond), "", fmt.Sprintf("%d %d.42 1 - {c}", e.now+3_000_000, scriptSecond),
	} {
		e.n = all[i]
		e.waiter([]string{"a", "b", "c"}[i], want)
	}
	e.replies(waitScript, nil, "echo", "echo")
}

// Inspect returns the state of one node.
func TestScriptInspects(t *testing.T) {
	e := startExact(t)
	keys := []string{e.n.lock, e.n.waiters}
	e.equal("an empty node", fmt.Sprintf("%q", e.run(inspectScript.Source, keys, "echo")), fmt.Sprintf("%q", []any{"echo", fmt.Sprint(scriptStart), "", int64(-2)}))
	e.acquire("a", 1, 100, 0, "ours a 100")
	e.do("HSET", e.n.waiters, "one", "1")
	e.equal("a lock", fmt.Sprintf("%q", e.run(inspectScript.Source, keys, "echo")), fmt.Sprintf("%q", []any{
		"echo", fmt.Sprint(scriptStart), fmt.Sprintf("=%s 100 %d.42 1 {a}", letterID("a"), scriptSecond), int64(10_000), "one", "1",
	}))
}

// A node accepts a proposal only if it is greater than every token that won here. Otherwise it stores the
// claim without a token, and answers with a candidate.
func TestScriptProposals(t *testing.T) {
	e := startEarly(t)
	const since = "0.42"
	e.propose("a", 1, 0, 0, 500, "held a 500")
	e.stored("a 500 "+since+" 1 {a}", 10_000)
	e.highest(500, day)
	e.now += 1_000_000
	e.propose("a", 1, 0, 0, 500, "held a 500") // the call arrives again, and does not lengthen the lease
	e.stored("a 500 "+since+" 1 {a}", 9000)
	e.propose("b", 1, 0, 0, 600, "taken b 0 a 9000")
	e.highest(500, day-1000)
	e.propose("a", 2, 0, 0, 500, fmt.Sprintf("ours a %d", e.now))
	e.stored("a 0 "+since+" 2 {a}", 10_000)
	e.confirm("a", 2, 500, "higher a 500")
	e.confirm("a", 2, 501, "held a 501")
	e.propose("a", 2, 0, 0, 500, "stale a 0") // again, when the second phase is over
	e.stored("a 501 "+since+" 2 {a}", 10_000)
	e.propose("a", 3, 0, 0, 502, "held a 502")
	e.stored("a 502 "+since+" 3 {a}", 10_000)
	e.highest(502, day)
	e.propose("a", 2, 0, 0, 600, "stale a 0")
	e.propose("a", 4, 700, 0, 600, "ours a 700") // it has won
	e.highest(700, day)
}

// A node that has no token yet does not accept one that is far behind its clock: the Client may have been
// suspended, and greater tokens may be forgotten.
func TestScriptOldProposals(t *testing.T) {
	e := startExact(t)
	e.propose("a", 1, 0, 0, e.now-1_000_001, fmt.Sprintf("ours a %d", e.now))
	e.release("a", 0, -1, "", "held a 0 0")
	e.propose("a", 2, 0, 0, e.now-1_000_000, fmt.Sprintf("held a %d", e.now-1_000_000))
}

// The highest token outlives a lock that is renewed for longer than a day.
func TestScriptRenewalKeepsTheHighestToken(t *testing.T) {
	e := startExact(t)
	renew := func(want any) {
		e.Helper()
		e.replies(renewScript, []string{e.n.lock, e.n.fence}, fmt.Sprint("echo ", want), "echo", letterID("a"), 2*day, 100, 0, 1)
	}
	e.acquire("a", 1, 100, 0, "ours a 100")
	renew(100)
	e.now += day / 2 * 1000
	renew(100)
	e.highest(100, day/2)
	e.now += 1000
	renew(100)
	e.highest(100, day)
	e.do("SET", e.n.fence, "300", "PX", "1000") // of a claim that did not win
	renew(100)
	e.highest(300, day)
	e.do("DEL", e.n.fence)
	renew(100)
	e.highest(100, day)
}

// The day for which the highest token is kept begins with the release. A token that was lost is stored again.
func TestScriptReleaseKeepsTheHighestToken(t *testing.T) {
	e := startExact(t)
	hold := func() {
		e.Helper()
		e.acquire("a", 1, 100, 0, "ours a 100")
		e.do("SET", e.n.fence, "300", "PX", 1000) // of a claim that did not win
	}
	hold()
	e.release("b", 0, -1, "", "gone b 0 0")
	e.release("a", 0, -1, "99", "gone a 0 0")
	e.highest(300, 1000)
	e.release("a", 0, -1, "", "held a 100 0")
	e.highest(300, day)
	hold()
	e.do("DEL", e.n.fence)
	e.release("a", 0, -1, "", "held a 100 0")
	e.highest(100, day)
	e.do("DEL", e.n.fence)
	e.acquire("a", 1, 0, 0, fmt.Sprintf("ours a %d", e.now)) // it has not won
	e.release("a", 0, -1, "", "held a 0 0")
	e.expires(e.n.fence, -2)
}
