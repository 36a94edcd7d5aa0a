package redislock

import (
	"fmt"
	"testing"
)

// A claim on a free lock gets the server's time as its token, or the number after the last token if
// the clock was set back. Tokens that it reserves are never given to another claim.
func TestScriptTokensOfAFreeLock(t *testing.T) {
	s := newScriptLock(t)
	const start = scriptStart
	for i, tc := range []struct {
		name              string
		last              int64 // 0: no token is known
		tokens            int
		want, wantLast    int64
		behindADeadWaiter bool
	}{
		{name: "first", want: start, wantLast: start},
		{name: "first of five", tokens: 5, want: start, wantLast: start + 4},
		{name: "one below the time", last: start - 1, want: start, wantLast: start},
		{name: "equal to the time", last: start, want: start + 1, wantLast: start + 1},
		{name: "ahead of the time", last: start + 1e9, want: start + 1e9 + 1, wantLast: start + 1e9 + 1},
		{name: "ahead, five", last: start + 1e9, tokens: 5, want: start + 1e9 + 1, wantLast: start + 1e9 + 5},
		{name: "five, one below", last: start - 1, tokens: 5, want: start, wantLast: start + 4},
		{name: "dead waiter", behindADeadWaiter: true, want: start, wantLast: start},
		{name: "dead waiter, five", behindADeadWaiter: true, tokens: 5, want: start, wantLast: start + 4},
		{name: "dead waiter, one below", behindADeadWaiter: true, last: start - 1, want: start, wantLast: start},
		{name: "dead waiter, equal", behindADeadWaiter: true, last: start, want: start + 1, wantLast: start + 1},
		{name: "dead waiter, ahead", behindADeadWaiter: true, last: start + 1e9, tokens: 5, want: start + 1e9 + 1, wantLast: start + 1e9 + 5},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := *s
			s.T = t
			s.use(fmt.Sprint("k", i))
			if tc.last > 0 {
				s.do("SET", s.n.counter, tc.last)
			}
			if tc.behindADeadWaiter {
				s.wait("f", 0, 0, 0, "-")
			}
			s.acquire("a", 30_000, 0, tc.tokens, fmt.Sprint("held a ", tc.want))
			s.stored(fmt.Sprintf(`a. %d %d - {"of": "a"}`, tc.want, max(tc.tokens, 1)), 30_000)
			s.lastToken(tc.wantLast)
			s.queued("")
		})
	}
}

// A counter that is not a number is replaced.
func TestScriptDamagedCounter(t *testing.T) {
	s := newScriptLock(t)
	s.do("SET", s.n.counter, "x")
	s.acquire("a", 30_000, 0, 0, fmt.Sprint("held a ", scriptStart))
	s.wait("b", 0, 1_000_000, 0, "-")
	s.do("SET", s.n.counter, "x")
	s.release("a", "held a 0")
	s.stored(fmt.Sprintf(`b. %d 1 - {"of": "b"}`, scriptStart), 1000)
	s.lastToken(scriptStart)
}

// The first waiter marks the value of the lock, and only values of this library.
func TestScriptMarks(t *testing.T) {
	s := newScriptLock(t)
	for i, tc := range []struct{ value, want string }{
		{`c. 7 1 - {}`, `c+ 7 1 - {}`},
		{`c+ 7 1 - {}`, `c+ 7 1 - {}`},
		{`c. plain`, `c. plain`},
		{`c.7 1 - {}`, `c.7 1 - {}`},
		{`c 7 1700000005.42 9 {}`, `c 7 1700000005.42 9 {}`}, // of redlock
		{`plain`, `plain`},
	} {
		s.use(fmt.Sprint("k", i))
		s.do("SET", s.n.lock, expandIDs(tc.value), "PX", 5000)
		s.acquire("b", 30_000, 3000, 0, "queued b 0 1 5002")
		s.stored(tc.want, 5000)
		s.do("SET", s.n.lock, expandIDs(tc.value), "PX", 5000) // as if the mark was lost
		s.renew("b", "queued b 0 1 5002")
		s.stored(tc.want, 5000)
		s.do("SET", s.n.lock, expandIDs(tc.value), "PX", 5000)
		s.acquire("b", 30_000, 3000, 0, "queued b 0 1 5002") // in the general way
		s.stored(tc.want, 5000)
	}
}

// A grant takes its token as a claim on a free lock does: in the common case of a release, in the
// general one, and when a renewal finds the lock free.
func TestScriptTokensOfGrants(t *testing.T) {
	s := newScriptLock(t)
	s.listen("dlock:p")
	const start = scriptStart
	for _, path := range []string{"usual release", "release", "renewal"} {
		for _, tc := range []struct {
			name           string
			last           int64
			tokens         int
			want, wantLast int64
		}{
			{name: "first", want: start, wantLast: start},
			{name: "one below the time", last: start - 1, want: start, wantLast: start},
			{name: "equal to the time", last: start, want: start + 1, wantLast: start + 1},
			{name: "ahead of the time", last: start + 1e9, want: start + 1e9 + 1, wantLast: start + 1e9 + 1},
			{name: "two", tokens: 2, want: start, wantLast: start + 1},
			{name: "five", tokens: 5, want: start, wantLast: start + 4},
			{name: "ten", tokens: 10, want: start, wantLast: start + 9},
			{name: "five, ahead of the time", last: start + 1e9, tokens: 5, want: start + 1e9 + 1, wantLast: start + 1e9 + 5},
		} {
			t.Run(path+", "+tc.name, func(t *testing.T) {
				s := *s
				s.T = t
				s.use(path + tc.name)
				s.acquire("a", 30_000, 0, 0, fmt.Sprint("held a ", start))
				s.acquire("b", 30_000, 3000, tc.tokens, "queued b 0 1 30002")
				s.do("DEL", s.n.counter)
				if tc.last > 0 {
					s.do("SET", s.n.counter, tc.last)
				}
				left := int64(3000)
				switch path {
				case "usual release":
					s.release("a", "held a 0")
				case "release":
					s.releaseWith("a", 0, 0, "", "held a 0")
				default:
					s.do("DEL", s.n.lock)
					s.renew("b", fmt.Sprint("held b ", tc.want))
					left = 20_000
				}
				s.stored(fmt.Sprintf(`b. %d %d dlock:p {"of": "b"}`, tc.want, max(tc.tokens, 1)), left)
				s.lastToken(tc.wantLast)
				s.queued("")
			})
		}
	}
}

// A claim on a busy lock is queued behind the other waiters. The first asks again when the lease
// ends, and newcomers keep the queue alive in some seconds.
func TestScriptQueues(t *testing.T) {
	s := newScriptLock(t)
	s.acquire("a", 30_000, 0, 0, fmt.Sprint("held a ", scriptStart))
	s.now += 1_000_000
	s.acquire("b", 30_000, 3000, 0, "queued b 0 1 29002")
	s.record("b", 3_000_000, fmt.Sprintf(`%d.42 1 0 - {"of": "b"}`, scriptSecond+1))
	s.expires(s.n.queue, 60_000)
	s.expires(s.n.waiters, 60_000)
	s.now += 1_500_006 // of its microseconds, and not of its seconds, 16 is a divisor
	s.acquire("c", 30_000, 2500, 7, "queued c 0 2 0")
	s.record("c", 2_500_000, fmt.Sprintf(`%d.500048 7 0 - {"of": "c"}`, scriptSecond+2))
	s.expires(s.n.queue, 58_500)
	s.expires(s.n.waiters, 58_500)
	s.acquire("f", 30_000, 0, 0, "gone f 0")
	s.now = (scriptSecond+11)*1_000_000 + 7 // a sixteenth second
	s.acquire("d", 30_000, 3000, 0, "queued d 0 3 19003")
	s.record("d", 3_000_000, fmt.Sprintf(`%d.7 1 0 - {"of": "d"}`, scriptSecond+11))
	s.expires(s.n.queue, 60_000)
	s.expires(s.n.waiters, 60_000)
	s.queued("b+1000000 c+2500006 d+10999965")
	s.stored(fmt.Sprintf(`a+ %d 1 - {"of": "a"}`, scriptStart), 19_001)
}

// A claim that arrives after the clock was set back is placed behind the others.
func TestScriptArrivalAfterTheClockWasSetBack(t *testing.T) {
	s := newScriptLock(t)
	for _, gap := range []bool{false, true} { // next to plain clients the general code runs
		s.use(fmt.Sprint("k", gap))
		s.gap = gap
		s.acquire("a", 30_000, 0, 0, fmt.Sprint("held a ", s.now))
		s.wait("b", 10, 3_000_000, 0, "-")
		s.now += 10
		recheck := map[bool]int{true: 30_002}[gap]
		s.acquire("c", 30_000, 3000, 0, fmt.Sprint("queued c 0 2 ", recheck))
		s.now--
		s.acquire("d", 30_000, 3000, 0, fmt.Sprint("queued d 0 3 ", recheck))
		s.now += 100
		s.acquire("e", 30_000, 3000, 0, fmt.Sprint("queued e 0 4 ", recheck))
		s.queued("b+10 c+11 d+12 e+109")
	}
}

// A lock without an expiry, set by another program, gives no recheck time.
func TestScriptQueuesBehindAPlainKey(t *testing.T) {
	s := newScriptLock(t)
	s.do("SET", s.n.lock, "x")
	s.acquire("a", 30_000, 3000, 0, "queued a 0 1 0")
	s.acquire("a", 30_000, 3000, 0, "queued a 0 1 0")
	s.renew("a", "queued a 0 1 0")
	s.acquire("b", 30_000, 0, 0, "gone b 0")
	s.queued("a+0")
}

// A claim that is submitted again keeps what it has: the lock and its token, or its place and its
// mark.
func TestScriptSubmitsAgain(t *testing.T) {
	s := newScriptLock(t)
	s.acquire("a", 30_000, 3000, 0, fmt.Sprint("held a ", scriptStart))
	s.now += 5_000_000
	s.acquire("a", 10_000, 3000, 0, fmt.Sprint("held a ", scriptStart))
	s.stored(fmt.Sprintf(`a. %d 1 - {"of": "a"}`, scriptStart), 10_000)
	s.now = scriptStart
	s.acquire("b", 30_000, 3000, 0, "queued b 0 1 15002")
	s.wait("c", 1, 3_000_000, 1, "-")
	s.now += 1_000_000
	s.channel = "dlock:q"
	s.acquire("b", 30_000, 3000, 4, "queued b 0 1 14002")
	s.acquire("c", 30_000, 3000, 0, "queued c 0 2 14002")
	s.record("b", 3_000_000, fmt.Sprintf(`%d.42 4 0 dlock:q {"of": "b"}`, scriptSecond))
	s.record("c", 3_000_000, fmt.Sprintf(`%d.43 1 1 dlock:q {"of": "c"}`, scriptSecond))
	s.expires(s.n.queue, 60_000)
	s.expires(s.n.waiters, 60_000)
	s.do("DEL", s.n.queue)
	s.acquire("c", 30_000, 3000, 0, "queued c 0 1 14002")
	s.acquire("b", 30_000, 3000, 0, "queued b 0 1 14002")
	s.queued("b+0 c+1")
}

// A claim whose release came first is not stored, whether the lock is free or not.
func TestScriptTombstone(t *testing.T) {
	s := newScriptLock(t)
	s.releaseWith("a", 5000, 0, "", "gone a 0")
	s.expires(s.n.tombstone(scriptID("a")), 5000)
	s.acquire("a", 30_000, 3000, 0, "gone a 0")
	s.stored("", -2)
	s.acquire("b", 30_000, 0, 0, fmt.Sprint("held b ", scriptStart))
	s.acquire("a", 30_000, 3000, 0, "gone a 0")
	s.wait("c", 0, 3_000_000, 0, "-")
	s.acquire("a", 30_000, 3000, 0, "gone a 0")
	s.queued("c+0")
	s.now += 5_000_000
	s.acquire("a", 30_000, 3000, 0, "queued a 0 2 0")
}

// A free lock with waiters goes to the first living one.
func TestScriptNewcomerServesWaiters(t *testing.T) {
	s := newScriptLock(t)
	s.wait("a", 0, 0, 0, "-") // its heartbeat ends now
	s.wait("b", 1, 1, 0, "-")
	s.wait("c", 2, 2_000_500, 0, "-")
	s.acquire("d", 30_000, 3000, 0, "queued d 0 2 3")
	s.stored(fmt.Sprintf(`b+ %d 1 - {"of": "b"}`, scriptStart), 1)
	s.queued("c+2 d+3")
	s.expires(s.n.queue, 60_000)
	s.do("DEL", s.n.lock)
	s.acquire("e", 30_000, 0, 0, "gone e 0")
	s.stored(fmt.Sprintf(`c+ %d 1 - {"of": "c"}`, scriptStart+1), 2001)
	s.queued("d+3")
}

// A call drops dead waiters in chunks, up to a limit. It reports what remains.
func TestScriptDropsDeadWaitersInParts(t *testing.T) {
	s := newScriptLock(t)
	s.crowd(600, 0, 0)
	s.acquire("a", 30_000, 0, 0, "again a 0")
	s.stored("", -2)
	if n := s.do("ZCARD", s.n.queue); n != int64(88) {
		t.Errorf("%d of 600 dead waiters are left", n)
	}
	s.acquire("a", 30_000, 0, 0, fmt.Sprint("held a ", scriptStart))
	s.queued("")

	s.use("bound")
	s.crowd(512, 0, 0)
	s.acquire("a", 30_000, 0, 0, fmt.Sprint("held a ", scriptStart))

	s.use("waits")
	s.crowd(513, 0, 0)
	s.acquire("a", 30_000, 3000, 0, "queued a 0 2 1")
	s.renew("a", fmt.Sprint("held a ", scriptStart))

	s.use("released")
	s.acquire("a", 30_000, 0, 0, fmt.Sprint("held a ", scriptStart))
	s.crowd(513, 0, 0)
	s.release("a", "held a 0 more")
	s.renew("") // the lock is free, and no waiter remains
	s.crowd(513, 0, 0)
	s.renew("", "more")
	s.queued("0+512")
}

// Claims that join a queue of 1024 examine some of its waiters and drop the dead ones.
func TestScriptSamplesALongQueue(t *testing.T) {
	s := newScriptLock(t)
	s.acquire("a", 30_000, 0, 0, fmt.Sprint("held a ", scriptStart))
	s.crowd(1023, 0, 0)
	s.acquire("b", 30_000, 3000, 0, "queued b 0 1024 0")
	s.expires(s.n.queue, -1) // the usual code has run, which looks at nothing
	s.use("longer")
	s.acquire("a", 30_000, 0, 0, fmt.Sprint("held a ", scriptStart))
	s.crowd(1024, 0, 0)
	s.acquire("c", 30_000, 3000, 0, "queued c 0 1017 0")
	s.record("c", 3_000_000, fmt.Sprintf(`%d.42 1 0 - {"of": "c"}`, scriptSecond))
	s.expires(s.n.queue, 60_000)
	if n, m := s.do("ZCARD", s.n.queue), s.do("HLEN", s.n.waiters); n != int64(1017) || m != n {
		t.Errorf("%d wait and %d have records, want 1017", n, m)
	}
	s.use("alive")
	s.acquire("a", 30_000, 0, 0, fmt.Sprint("held a ", scriptStart))
	s.crowd(1024, 0, 1)
	s.acquire("c", 30_000, 3000, 0, "queued c 0 1025 0")
}

// A queue has a maximum length, and dropped dead waiters do not count.
func TestScriptFullQueue(t *testing.T) {
	s := newScriptLock(t)
	holds := func(want int64) {
		t.Helper()
		if n, m := s.do("ZCARD", s.n.queue), s.do("HLEN", s.n.waiters); n != want || m != n {
			t.Errorf("%d wait and %d have records, want %d", n, m, want)
		}
	}
	s.acquire("a", 30_000, 0, 0, fmt.Sprint("held a ", scriptStart))
	s.crowd(100_000, 0, 1)
	s.acquire("b", 30_000, 3000, 0, "full b 100000")
	holds(100_000)
	s.release(fmt.Sprint(0), "queued "+scriptID("0")+" 0")
	s.acquire("b", 30_000, 3000, 0, "queued b 0 100000 0")
	s.release("b", "queued b 0")
	s.wait("c", 0, 1, 0, "-")
	s.now++ // all of them are dead
	s.acquire("b", 30_000, 3000, 0, "queued b 0 99993 0")
	holds(99_993)
}

// A heartbeat is exact to the millisecond.
func TestScriptHeartbeats(t *testing.T) {
	s := newScriptLock(t)
	s.acquire("a", 30_000, 0, 0, fmt.Sprint("held a ", scriptStart))
	for _, ms := range []int{1, 999, 1000, 1001, 1998, 2000, 2002, 10_000} {
		s.acquire("b", 30_000, ms, 0, "queued b 0 1 30002")
		s.record("b", int64(ms)*1000, fmt.Sprintf(`%d.42 1 0 - {"of": "b"}`, scriptSecond))
		s.release("b", "queued b 0")
	}
}

// A stored place is kept, also if its record was lost, and if it differs from the arrival because
// the clock had been set back.
func TestScriptKeepsPlaces(t *testing.T) {
	s := newScriptLock(t)
	s.acquire("a", 30_000, 0, 0, fmt.Sprint("held a ", scriptStart))
	s.wait("b", 0, 1_000_000, 0, "-")
	s.wait("c", 1, 1_000_000, 0, "-")
	s.do("HDEL", s.n.waiters, scriptID("b"))
	s.now += 10
	s.acquire("b", 30_000, 3000, 0, "queued b 0 3 0")
	s.queued("b+0 c+1")
	s.do("ZADD", s.n.queue, scriptStart+5, scriptID("b"))
	s.acquire("b", 30_000, 3000, 0, "queued b 0 2 30002")
	s.queued("c+1 b+5")
	s.renew("b", "queued b 0 2 30002")
	s.queued("c+1 b+5")
}

// While the key is left free for plain clients, no claim of this library gets it, and the first
// waiter asks again soon.
func TestScriptGap(t *testing.T) {
	s := newScriptLock(t)
	s.gap = true
	for ms, recheck := range map[int]int{20: 22, 48: 50, 49: 50, 1000: 50} {
		s.use(fmt.Sprint("k", ms))
		s.acquire("a", 30_000, 0, 0, fmt.Sprint("held a ", scriptStart))
		s.releaseWith("a", 0, ms, "", "held a 0")
		s.expires(s.n.gap, int64(ms))
		s.acquire("b", 30_000, 3000, 0, fmt.Sprint("queued b 0 1 ", recheck))
		s.acquire("c", 30_000, 3000, 0, fmt.Sprint("queued c 0 2 ", ms+2))
		s.acquire("d", 30_000, 0, 0, "gone d 0")
		s.renew("c b", fmt.Sprint("queued c 0 2 ", ms+2), fmt.Sprint("queued b 0 1 ", recheck))
		s.stored("", -2)
		s.now += int64(ms) * 1000
		s.renew("c", "queued c 0 1 50")
		s.stored(fmt.Sprintf(`b+ %d 1 - {"of": "b"}`, s.now), 2000-int64(ms))
		s.renew("c", "queued c 0 1 50")
	}
	s.use("free")
	s.acquire("a", 30_000, 3000, 0, fmt.Sprint("held a ", scriptStart))
	s.do("DEL", s.n.lock)
	s.do("SET", s.n.gap, "1", "PX", 40)
	s.acquire("b", 30_000, 3000, 0, "queued b 0 1 42")
	s.do("SET", s.n.lock, "plain")
	s.do("DEL", s.n.gap)
	s.renew("b", "queued b 0 1 50")
}

// A tombstone is seen although a half of the queue is missing.
func TestScriptTombstoneNextToHalfAQueue(t *testing.T) {
	s := newScriptLock(t)
	s.acquire("a", 30_000, 0, 0, fmt.Sprint("held a ", scriptStart))
	s.wait("b", 0, 3_000_000, 0, "-")
	s.do("DEL", s.n.waiters)
	s.do("SET", s.n.tombstone(scriptID("c")), "1")
	s.acquire("c", 30_000, 3000, 0, "gone c 0")
	s.expires(s.n.waiters, -2)
}
