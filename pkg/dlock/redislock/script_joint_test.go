package redislock

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/ceyewan/genesis/internal/sim/simredis"
)

// join submits the claim of a reader or for a permit, with a TTL of 30 s and a heartbeat of 3 s.
func (s *scriptLock) join(letter, mode string, waits bool, want string) {
	s.Helper()
	s.equal("the answer to "+letter, s.joinID(scriptID(letter), letter, mode, waits), want)
}

func (s *scriptLock) joinID(id, name, mode string, waits bool) string {
	s.Helper()
	keys := []string{s.n.lock, s.n.counter, s.n.queue, s.n.waiters, s.n.holders, s.n.tombstone(id)}
	if s.gap {
		keys = append(keys, s.n.gap)
	}
	heartbeat := 0
	if waits {
		heartbeat = 3000
	}
	return fmt.Sprint(s.run(acquireJointScript.Source, keys, id, 30_000, heartbeat, s.channel+` {"of": "`+name+`"}`, 1, mode))
}

// heldBy checks who holds the lock, each with a letter and the microseconds left, and that each has
// a record.
func (s *scriptLock) heldBy(mode, want string) {
	s.Helper()
	var got []string
	for _, z := range s.client.ZRangeWithScores(context.Background(), s.n.lock, 0, -1).Val() {
		name := z.Member.(string)
		if name != mode {
			name = fmt.Sprint(name[:1], "+", int64(z.Score)-s.now)
		}
		got = append(got, name)
	}
	s.equal("the lock", strings.Join(got, " "), strings.TrimSpace(want+" "+mode))
	if n := s.client.HLen(context.Background(), s.n.holders).Val(); n != int64(max(len(got)-1, 0)) {
		s.Errorf("%d hold the lock and %d have records", len(got)-1, n)
	}
}

// free checks that nothing is stored but the counter.
func (s *scriptLock) free() {
	s.Helper()
	if n := s.do("EXISTS", s.n.lock, s.n.queue, s.n.waiters, s.n.holders); n != int64(0) {
		s.Errorf("%v of the keys are left", n)
	}
}

// Readers hold a lock together, each for its own lease, and nothing is left of them.
func TestScriptReaders(t *testing.T) {
	s := newScriptLock(t)
	s.join("a", "s", false, fmt.Sprint("held a ", scriptStart))
	s.now += 5_000_000
	s.join("b", "s", false, fmt.Sprint("held b ", scriptStart+5_000_000))
	s.heldBy("s", "a+25000000 b+30000000")
	s.expires(s.n.lock, 30_000)
	s.expires(s.n.holders, 30_000)
	s.acquire("c", 30_000, 0, 0, "gone c 0")
	s.join("c", "p3", false, "gone c 0")

	// A call that is repeated, in either way, has the same token, and the lease restarts.
	s.join("a", "s", false, fmt.Sprint("held a ", scriptStart))
	s.heldBy("s", "a+30000000 b+30000000")
	s.now += 1_000_000
	s.renew("a", fmt.Sprint("held a ", scriptStart))
	s.heldBy("s", "a+20000000 b+29000000")
	s.expires(s.n.lock, 29_000)

	// b dies; a, which renews, holds the lock alone.
	for range 3 {
		s.now += 10_000_000
		s.renew("a", fmt.Sprint("held a ", scriptStart))
	}
	s.heldBy("s", "a+20000000")
	s.renew("b", "gone b 0")
	s.release("b", "gone b 0")
	s.release("a", "held a 0")
	s.free()
}

// The keys of readers expire with the last lease that is left, whoever leaves, and in which way.
func TestScriptReadersExpireWithTheLastLease(t *testing.T) {
	s := newScriptLock(t)
	for name, leave := range map[string]func(){
		"released":               func() { s.release("a", "held a 0") },
		"released, with waiters": func() { s.wait("c", 0, 3_000_000, 0, "-"); s.release("a", "held a 0") },
		"released, all":          func() { s.releaseWith("a", 0, 0, "", "held a 0") },
		"evicted":                func() { s.releaseWith("a", 0, 0, fmt.Sprint(scriptStart), fmt.Sprint("held a ", scriptStart)) },
	} {
		s.use(name)
		s.join("a", "s", false, fmt.Sprint("held a ", scriptStart))
		s.joinFor("b", 2000)
		s.joinFor("d", 1000)
		s.expires(s.n.lock, 30_000)
		s.release("d", "held d 0") // not the last lease
		s.expires(s.n.lock, 30_000)
		leave()
		s.expires(s.n.lock, 2000)
		s.expires(s.n.holders, 2000)
	}
	s.use("just ended") // for less than the unit of an expiry
	s.join("a", "s", false, fmt.Sprint("held a ", scriptStart))
	s.joinFor("b", 2000)
	s.now += 2_000_500
	s.release("a", "held a 0")
	s.now -= 2_000_500
	s.use("extended")
	s.join("a", "s", false, fmt.Sprint("held a ", scriptStart))
	s.joinFor("b", 25_000)
	s.renew("a", fmt.Sprint("held a ", scriptStart)) // to a shorter lease
	s.expires(s.n.lock, 25_000)
	s.expires(s.n.holders, 25_000)
	s.renew("b", fmt.Sprint("held b ", scriptStart+1))
	s.expires(s.n.lock, 20_000)
	s.expires(s.n.holders, 20_000)
	s.now += 1_000_000
	s.renew("b", fmt.Sprint("held b ", scriptStart+1))
	s.expires(s.n.lock, 20_000)
	s.expires(s.n.holders, 20_000)
}

// joinFor submits the claim of a reader that gets the lock, with another TTL.
func (s *scriptLock) joinFor(letter string, ttl int) {
	s.Helper()
	keys := []string{s.n.lock, s.n.counter, s.n.queue, s.n.waiters, s.n.holders, s.n.tombstone(scriptID(letter))}
	s.run(acquireJointScript.Source, keys, scriptID(letter), ttl, 0, "- {}", 1, "s")
}

// A reader past its deadline is gone for every script, though the key lives with the others.
func TestScriptLateReader(t *testing.T) {
	s := newScriptLock(t)
	for name, ask := range map[string]func(){
		"release":      func() { s.release("a", "gone a 0") },
		"release, all": func() { s.releaseWith("a", 0, 0, "", "gone a 0") },
		"eviction":     func() { s.releaseWith("a", 0, 0, fmt.Sprint(scriptStart), "gone a 0") },
		"renewal":      func() { s.renew("a", "gone a 0") },
		"submission":   func() { s.join("a", "s", false, fmt.Sprint("held a ", s.now)) },
	} {
		s.use(name)
		s.join("a", "s", false, fmt.Sprint("held a ", scriptStart))
		s.now += 20_000_000
		s.join("b", "s", false, fmt.Sprint("held b ", s.now))
		s.now += 10_000_000
		ask()
		if name != "submission" {
			s.renew("b", fmt.Sprint("held b ", s.now-10_000_000))
			s.heldBy("s", "b+20000000")
		}
	}
}

// Permits are limited, and a dead one makes room when its own lease has ended.
func TestScriptPermits(t *testing.T) {
	s := newScriptLock(t)
	s.join("a", "p2", false, fmt.Sprint("held a ", scriptStart))
	s.now += 1_000_000
	s.join("b", "p2", false, fmt.Sprint("held b ", s.now))
	s.join("c", "p2", false, "gone c 0")
	s.join("c", "p3", false, "gone c 0")
	s.join("c", "s", false, "gone c 0")
	s.join("c", "p2", true, "queued c 0 2 29002")
	s.join("d", "p2", true, "queued d 0 3 29002")
	s.now += 28_000_000
	s.renew("b", fmt.Sprint("held b ", scriptStart+1_000_000))
	s.renew("c d", "gone c 0", "gone d 0") // their heartbeats are over
	s.join("c", "p2", true, "queued c 0 2 1002")
	s.now += 1_000_000
	s.renew("c", fmt.Sprint("held c ", s.now))
	s.heldBy("p2", "b+19000000 c+20000000")
	s.join("d", "p2", false, "gone d 0")
	s.release("b", "held b 0")
	s.join("d", "p2", false, fmt.Sprint("held d ", s.now+1))
	s.release("c", "held c 0")
	s.release("d", "held d 0")
	s.free()
}

// No claim passes the head of the queue, and the head is granted as soon as it fits: readers together.
func TestScriptOrderOfModes(t *testing.T) {
	s := newScriptLock(t)
	p := s.listen("dlock:p")
	s.join("a", "s", false, fmt.Sprint("held a ", scriptStart))
	s.acquire("b", 30_000, 3000, 0, "queued b 0 1 30002")
	s.now++
	s.join("c", "s", false, "gone c 0")
	s.join("c", "s", true, "queued c 0 2 30002")
	s.now++
	s.join("d", "s", true, "queued d 0 3 30002")
	s.now++
	s.join("e", "p2", true, "queued e 0 4 30002")
	s.now++
	s.join("f", "s", true, "queued f 0 5 30002")
	s.hears(p)
	s.release("a", "held a 0")
	s.hears(p, fmt.Sprint("held k b ", s.now))
	s.release("b", "held b 0")
	s.hears(p, fmt.Sprint("held k c ", s.now+1), fmt.Sprint("held k d ", s.now+2))
	s.heldBy("s", "c+2999997 d+2999998")
	s.release("c", "held c 0")
	s.hears(p)
	s.release("d", "held d 0")
	s.hears(p, fmt.Sprint("held k e ", s.now+3))
	s.heldBy("p2", "e+2999999")
	s.releaseWith("e", 0, 0, fmt.Sprint(s.now+3), fmt.Sprint("held e ", s.now+3))
	s.hears(p, fmt.Sprint("gone k e ", s.now+3), fmt.Sprint("held k f ", s.now+4))
	s.release("f", "held f 0")
	s.free()
}

// When the head of the queue leaves, or dies, those behind it that fit are granted.
func TestScriptHeadLeaves(t *testing.T) {
	s := newScriptLock(t)
	for name, leave := range map[string]func(){
		"released": func() { s.release("b", "queued b 0") },
		"evicted":  func() { s.releaseWith("b", 0, 0, "0", "queued b 0") },
		"dead": func() {
			s.now += 2_000_000
			s.renew("c", "queued c 0 2 28002")
			s.now += 1_500_000
			s.join("d", "s", false, fmt.Sprint("held d ", s.now+1)) // after c
		},
		"dead, found by a renewal": func() {
			s.now += 2_000_000
			s.renew("c", "queued c 0 2 28002")
			s.now += 1_500_000
			s.renew("")
		},
	} {
		s.use(name)
		s.join("a", "s", false, fmt.Sprint("held a ", scriptStart))
		s.acquire("b", 30_000, 3000, 0, "queued b 0 1 30002")
		s.now++
		s.join("c", "s", true, "queued c 0 2 30002")
		leave()
		s.renew("c", fmt.Sprint("held c ", s.client.HGet(context.Background(), s.n.holders, scriptID("c")).Val()[:16]))
	}
}

// A release grants a bounded number of readers, and says that more are left.
func TestScriptManyReaders(t *testing.T) {
	s := newScriptLock(t)
	s.acquire("f", 30_000, 0, 0, fmt.Sprint("held f ", scriptStart))
	const readers = 70
	for i := range readers {
		s.now++
		s.joinID(fmt.Sprintf("%032d", i), "r", "s", true)
	}
	s.release("f", "held f 0 more")
	for n := range 3 {
		held, waits := s.do("ZCARD", s.n.lock), s.do("ZCARD", s.n.queue)
		if want := int64(min(32*(n+1), readers)); held != want+1 || waits != readers-want {
			t.Fatalf("after %d scripts %v hold the lock and %v wait", n+1, held, waits)
		}
		if n == 0 {
			s.renew("", "more")
		} else {
			s.renew("")
		}
	}
}

// Readers without a subscriber are granted together, too, if nobody else waits.
func TestScriptUnheardReaders(t *testing.T) {
	s := newScriptLock(t)
	s.acquire("f", 30_000, 0, 0, fmt.Sprint("held f ", scriptStart))
	s.channel = "dlock:nobody"
	const readers = 40
	for i := range readers {
		s.now++
		s.joinID(fmt.Sprintf("%032d", i), "r", "s", true)
	}
	s.acquire("b", 30_000, 3000, 0, fmt.Sprint("queued b 0 ", readers+1, " 0"))
	s.release("f", "held f 0 more")
	s.renew("")
	if held, waits := s.do("ZCARD", s.n.lock), s.do("ZCARD", s.n.queue); held != int64(readers+1) || waits != int64(1) {
		t.Errorf("%v hold the lock and %v wait", held, waits)
	}
}

// A reader that was skipped gets the lock after its next renewal, though the claim behind it does not fit.
func TestScriptSkippedReader(t *testing.T) {
	s := newScriptLock(t)
	s.join("a", "s", false, fmt.Sprint("held a ", scriptStart))
	s.acquire("b", 30_000, 3000, 0, "queued b 0 1 30002")
	s.now++
	s.channel = "dlock:nobody"
	s.join("c", "s", true, "queued c 0 2 30002")
	s.now++
	s.listen("dlock:p")
	s.acquire("d", 30_000, 3000, 0, "queued d 0 3 30002")
	s.release("b", "queued b 0") // c is the first now, and fits
	s.channel = "dlock:nobody"
	s.renew("c", fmt.Sprint("held c ", s.now))
	s.queued("d+2")
}

// Readers that died together do not hold up others, though their key lives: each script drops some of
// them, and says that more are left.
func TestScriptManyDeadReaders(t *testing.T) {
	s := newScriptLock(t)
	const readers, chunk = 500, 128
	die := func(name string, all bool) {
		s.use(name)
		keys := []string{s.n.lock, s.n.counter, s.n.queue, s.n.waiters, s.n.holders, s.n.tombstone("x")}
		s.run(acquireJointScript.Source, keys, scriptID("a"), 3_600_000, 0, "- {}", 1, "s")
		for i := range readers {
			s.run(acquireJointScript.Source, keys, fmt.Sprintf("%032d", i), 1000, 0, "- {}", 1, "s")
		}
		if all { // then the keys outlive them only if an earlier version has stored them
			s.release("a", "held a 0")
			s.do("PEXPIRE", s.n.lock, 3_600_000)
			s.do("PEXPIRE", s.n.holders, 3_600_000)
		}
		s.now += 1_000_000
	}
	die("tried", true)
	s.acquire("b", 30_000, 0, 0, "again b 0")
	s.acquire("b", 30_000, 0, 0, fmt.Sprint("held b ", s.now))

	die("waited for", true)
	s.acquire("b", 30_000, 3000, 0, fmt.Sprint("queued b 0 ", readers-2*chunk, " 1"))
	s.renew("b", "queued b 0 1 1")
	s.renew("b", fmt.Sprint("held b ", s.now))

	die("survived by one", false)
	s.release("a", "held a 0")
	s.acquire("b", 30_000, 0, 0, fmt.Sprint("held b ", s.now))

	die("released", false)
	s.acquire("b", 30_000, 3000, 0, fmt.Sprint("queued b 0 ", readers-2*chunk+1, " 1"))
	s.release("a", "held a 0 more")
	s.renew("")
	s.renew("b", fmt.Sprint("held b ", s.now))
}

// What plain clients and others store is not taken for a lock of readers, and is left alone.
func TestScriptForeignKeys(t *testing.T) {
	s := newScriptLock(t)
	s.do("SET", s.n.lock, "plain", "PX", 5000)
	s.join("a", "s", false, "gone a 0")
	s.join("a", "s", true, "queued a 0 1 5002")
	s.release("a", "queued a 0")
	s.join("b", "s", true, "queued b 0 1 5002")
	s.stored("plain", 5000)
	s.do("DEL", s.n.lock)
	s.renew("b", fmt.Sprint("held b ", scriptStart))
	if s.do("SET", s.n.lock, "plain", "NX", "PX", 5000) != nil {
		t.Error("a plain client gets the lock of a reader")
	}

	for i, command := range [][]any{{"ZADD", "k0", 1, "x"}, {"ZADD", "k1", 1, scriptID("a"), 2, "s"}, {"HSET", "k2", "a", "b"}, {"RPUSH", "k3", "s"}} {
		s.use(fmt.Sprint("k", i))
		s.do(command...)
		for name, err := range map[string]error{
			"a reader": s.fails(acquireJointScript.Source, scriptID("a"), 30_000, 3000, "- {}", 1, "s"),
			"a writer": s.fails(acquireScript.Source, scriptID("a"), 30_000, 3000, "- {}"),
		} {
			if err == nil || !strings.HasPrefix(err.Error(), "WRONGTYPE") {
				t.Errorf("%v: %s is told %v", command, name, err)
			}
		}
		s.release("a", "gone a 0")
		if s.do("EXISTS", s.n.lock) != int64(1) || s.do("EXISTS", s.n.queue, s.n.waiters, s.n.holders) != int64(0) {
			t.Errorf("%v: the key was changed", command)
		}
	}
}

// fails calls a script that submits a claim, and returns its error.
func (s *scriptLock) fails(source string, args ...any) error {
	s.Helper()
	keys := []string{s.n.lock, s.n.counter, s.n.queue, s.n.waiters, s.n.holders, s.n.tombstone("x")}
	return s.client.Eval(context.Background(), source, keys, args...).Err()
}

// If no token can be taken, nothing is stored: not even a lock that does not expire.
func TestScriptReaderWithoutToken(t *testing.T) {
	s := newScriptLock(t)
	s.do("RPUSH", s.n.counter, "not a string")
	if err := s.fails(acquireJointScript.Source, scriptID("a"), 30_000, 3000, "- {}", 1, "s"); err == nil {
		t.Error("a reader has the lock without a token")
	}
	s.free()
}

// A reader whose record was lost is gone, and keeps writers out as long as it was told that it has
// the lock. Nobody gets a lock early because a key was lost.
func TestScriptLostRecord(t *testing.T) {
	s := newScriptLock(t)
	s.join("a", "s", false, fmt.Sprint("held a ", scriptStart))
	s.now += 1_000_000
	s.join("b", "s", false, fmt.Sprint("held b ", s.now))
	s.do("DEL", s.n.holders)
	s.join("c", "s", false, fmt.Sprint("held c ", s.now+1))
	s.release("c", "held c 0")
	s.acquire("d", 30_000, 0, 0, "gone d 0")
	s.renew("a", "gone a 0")
	s.release("b", "held b 0")
	s.acquire("d", 30_000, 0, 0, "gone d 0")
	s.now += 29_000_000
	s.acquire("d", 30_000, 0, 0, fmt.Sprint("held d ", s.now))
}

// A tombstone and a gap keep readers out as they do writers.
func TestScriptReaderBarred(t *testing.T) {
	s := newScriptLock(t)
	s.releaseWith("a", 60_000, 0, "", "gone a 0")
	s.join("a", "s", true, "gone a 0")
	s.join("b", "s", true, fmt.Sprint("held b ", scriptStart))
	s.join("a", "s", true, "gone a 0")

	s.use("gap")
	s.gap = true
	s.join("a", "s", true, fmt.Sprint("held a ", scriptStart))
	s.join("b", "s", true, fmt.Sprint("held b ", scriptStart+1))
	s.acquire("c", 30_000, 3000, 0, "queued c 0 2 50")
	s.releaseWith("a", 0, 20, "", "held a 0")
	if s.do("EXISTS", s.n.gap) != int64(0) {
		t.Error("there is a gap while a reader holds the lock")
	}
	s.releaseWith("b", 0, 20, "", "held b 0")
	s.expires(s.n.gap, 20)
	s.join("d", "s", true, "queued d 0 2 22")
	s.join("e", "s", false, "gone e 0")
	s.now += 20_000
	s.renew("c", fmt.Sprint("held c ", s.now))
}

// look calls a script that only reads, and returns its answer as text, or its error.
func (s *scriptLock) look(source string, args ...any) string {
	s.Helper()
	keys := []string{s.n.lock, s.n.queue, s.n.holders}
	if source == inspectScript.Source {
		keys = []string{s.n.lock, s.n.queue, s.n.waiters, s.n.holders}
	}
	reply, err := simredis.Run(context.Background(), s.client, s.now, source, keys, args...).Result()
	if err != nil {
		return err.Error()
	}
	return strings.Join(s.texts(reply), "|")
}

// Operators see readers that hold a lock, not those past their deadline, and no key of others.
func TestScriptLooksAtReaders(t *testing.T) {
	s := newScriptLock(t)
	inspect := func() string { return s.look(inspectScript.Source, "-inf") }
	look := func() string { return s.look(lookScript.Source, "x") }
	s.join("a", "s", false, fmt.Sprint("held a ", scriptStart))
	s.now += 10_000_000
	s.join("b", "s", false, fmt.Sprint("held b ", s.now))
	s.acquire("c", 30_000, 3000, 0, "queued c 0 2 20002")
	a := fmt.Sprintf(`%s|=%d %d 1 - {"of": "a"}`, scriptID("a"), scriptStart+30_000_000, scriptStart)
	b := fmt.Sprintf(`%s|=%d %d 1 - {"of": "b"}`, scriptID("b"), s.now+30_000_000, s.now)
	c := fmt.Sprintf(`%s|%d %d.42 1 0 - {"of": "c"}`, scriptID("c"), s.now+3_000_000, scriptSecond+10)
	s.equal("what is shown", inspect(), fmt.Sprintf("%d|~s|30000||%s|%s|%s", s.now, a, b, c))
	s.equal("what is seen", look(), fmt.Sprintf("%d|~s|30000|1|%s", s.now, a))
	s.now += 20_000_000
	s.equal("what is seen", look(), fmt.Sprintf("%d|~s|10000|1|%s", s.now, b))
	s.do("ZREM", s.n.lock, scriptID("b")) // only one past its deadline is left
	s.equal("what is seen", look(), fmt.Sprintf("%d||-2|1", s.now))

	for _, foreign := range [][]any{{"ZADD", 1, "x"}, {"ZADD", 1, "s"}, {"ZADD", "inf", "p"}, {"HSET", "a", "b"}} {
		s.use(fmt.Sprint("foreign", foreign[2]))
		s.do(append([]any{foreign[0], s.n.lock}, foreign[1:]...)...)
		for what, got := range map[string]string{"Inspect": inspect(), "Look": look()} {
			if !strings.HasPrefix(got, "WRONGTYPE") {
				t.Errorf("%v: %s says %q", foreign, what, got)
			}
		}
	}
}

// Grants count those that they have added, and a claim that joins in the general way has its own lease.
func TestScriptCountsGrants(t *testing.T) {
	s := newScriptLock(t)
	s.acquire("a", 30_000, 0, 0, fmt.Sprint("held a ", scriptStart))
	for i, letter := range []string{"b", "c", "d", "e"} {
		s.now++
		s.join(letter, "p3", true, fmt.Sprintf("queued %s 0 %d 30002", letter, i+1))
	}
	s.release("a", "held a 0")
	s.heldBy("p3", "b+2999997 c+2999998 d+2999999")
	s.queued(fmt.Sprint("e+", 4))

	s.use("dead waiter")
	s.join("a", "s", false, fmt.Sprint("held a ", scriptStart))
	s.wait("f", 0, 0, 0, "-")
	s.join("b", "s", false, fmt.Sprint("held b ", scriptStart+1))
	s.heldBy("s", "a+30000000 b+30000000")
	s.expires(s.n.lock, 30_000)
}

// Readers are renewed without their queue, and those past their deadline are not.
func TestScriptRenewsReadersAlone(t *testing.T) {
	s := newScriptLock(t)
	renew := func(want string) {
		t.Helper()
		keys := []string{s.n.lock, s.n.holders}
		got := s.texts(s.run(renewJointScript.Source, keys, "echo", scriptID("a"), 20_000, scriptID("b"), 40_000))
		s.equal("the answer", strings.Join(got, "|"), want)
	}
	renew("echo||")
	s.join("a", "s", false, fmt.Sprint("held a ", scriptStart))
	s.now += 10_000_000
	s.join("b", "s", false, fmt.Sprint("held b ", s.now))
	renew(fmt.Sprintf("echo|%d|%d", scriptStart, s.now))
	s.heldBy("s", "a+20000000 b+40000000")
	s.expires(s.n.lock, 40_000)
	s.now += 20_000_000
	renew(fmt.Sprintf("echo||%d", scriptStart+10_000_000))
	s.heldBy("s", "b+40000000")
	if s.do("EXISTS", s.n.queue, s.n.waiters) != int64(0) {
		t.Error("the queue was touched")
	}
}
