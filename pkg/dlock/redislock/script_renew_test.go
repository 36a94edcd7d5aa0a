package redislock

import (
	"fmt"
	"strings"
	"testing"
)

// A renewal extends its claims in any phase, and keeps the queue.
func TestScriptRenews(t *testing.T) {
	s := newScriptLock(t)
	s.acquire("a", 30_000, 0, 0, fmt.Sprint("held a ", scriptStart))
	s.acquire("b", 30_000, 3000, 3, "queued b 0 1 30002")
	s.now += 1_000_000
	s.acquire("c", 30_000, 3000, 0, "queued c 0 2 0")
	s.renew("d c b a", "gone d 0", "queued c 0 2 29002", "queued b 0 1 29002", fmt.Sprint("held a ", scriptStart))
	s.expires(s.n.lock, 20_000)
	s.expires(s.n.queue, 60_000)
	s.expires(s.n.waiters, 60_000)
	s.record("b", 2_000_000, fmt.Sprintf(`%d.42 3 0 - {"of": "b"}`, scriptSecond))
	s.record("c", 2_000_000, fmt.Sprintf(`%d.42 1 0 - {"of": "c"}`, scriptSecond+1))
	s.queued("b+0 c+1000000")
}

// A waiter that renews too late is gone.
func TestScriptRenewsNoDeadWaiter(t *testing.T) {
	s := newScriptLock(t)
	s.acquire("a", 30_000, 0, 0, fmt.Sprint("held a ", scriptStart))
	s.wait("b", 0, 0, 0, "-")
	s.wait("c", 1, 1, 0, "-")
	s.renew("b c", "gone b 0", "queued c 0 1 30002")
	s.queued("c+1")
	s.do("HDEL", s.n.waiters, scriptID("c"))
	s.renew("c", "gone c 0")
	s.queued("")
}

// A waiter whose place was lost returns to it. A place has six digits of microseconds.
func TestScriptRenewalBringsPlacesBack(t *testing.T) {
	s := newScriptLock(t)
	s.acquire("a", 30_000, 0, 0, fmt.Sprint("held a ", scriptStart))
	s.wait("b", 0, 1_000_000, 0, "-")
	s.wait("c", 123_456, 1_000_000, 0, "-")
	s.do("DEL", s.n.queue)
	s.renew("c b", "queued c 0 2 30002", "queued b 0 1 30002")
	s.queued("b+0 c+123456")
	s.expires(s.n.queue, 60_000)
	s.do("DEL", s.n.queue, s.n.waiters)
	s.do("HSET", s.n.waiters, scriptID("b"), fmt.Sprintf("%d damaged 1 0 - {}", s.now+1))
	s.renew("b", "gone b 0") // its arrival is not known any more
	s.queued("")
}

// A renewal of many waiters takes as many commands as that of a few. It reads the places of the first 16, and
// estimates the others by when they came.
func TestScriptRenewsMany(t *testing.T) {
	s := newScriptLock(t)
	s.acquire("a", 30_000, 0, 0, fmt.Sprint("held a ", scriptStart))
	for i, letter := range "bcdefghijklmnopqrstuvwxyz" {
		arrival := int64(10 * i)
		if letter > 'u' {
			arrival += 70
		}
		s.wait(scriptID(string(letter)), arrival, 1_000_000, 0, "-")
	}
	var want []string
	for i, letter := range "bcdefghijklmnopq" {
		recheck := 0
		if i < 8 {
			recheck = 30_002
		}
		want = append(want, fmt.Sprintf("queued %s 0 %d %d", scriptID(string(letter)), i+1, recheck))
	}
	for i, place := range []int{17, 17, 18, 18, 22, 23, 23, 24, 25} { // by arrival, from r, with 16 before it, to z, with 24
		want = append(want, fmt.Sprintf("queued %s 0 %d 0", scriptID("rstuvwxyz"[i:i+1]), place))
	}
	s.renew("b c d e f g h i j k l m n o p q r s t u v w x y z", want...)
	commands := func(letters string) (n int) {
		s.check(s.client.ConfigResetStat(s.Context()).Err())
		s.renewed(letters)
		for line := range strings.Lines(s.client.Info(s.Context(), "commandstats").Val()) {
			if _, calls, ok := strings.Cut(line, ":calls="); ok {
				var called int
				_, err := fmt.Sscanf(calls, "%d,", &called)
				s.check(err)
				n += called
			}
		}
		return n
	}
	few, many := commands("b c d e f g h i j"), commands("b c d e f g h i j k l m n o p q r s t u v w x y z")
	if many > few+2 || many > 20 || few == 0 {
		t.Errorf("%d commands for 25 waiters, %d for 9", many, few)
	}
}

// A renewal gives a free lock to the first waiter, whichever claim it renews, and notifies it.
func TestScriptRenewalGrants(t *testing.T) {
	s := newScriptLock(t)
	p := s.listen("dlock:p")
	s.wait("b", 0, 1_000_000, 0, "dlock:p")
	s.wait("c", 1, 1_000_000, 0, "-")
	s.renew("c", "queued c 0 1 1002")
	s.hears(p, fmt.Sprint("held k b ", scriptStart))
	s.record("c", 2_000_000, fmt.Sprintf(`%d.43 1 0 dlock:p {"of": "c"}`, scriptSecond))
	s.renew("b c", fmt.Sprint("held b ", scriptStart), "queued c 0 1 20002")
	s.stored(fmt.Sprintf(`b+ %d 1 dlock:p {"of": "b"}`, scriptStart), 20_000)
	s.hears(p)
}

// A waiter that was passed over is served in its turn once it has renewed. It learns that its
// channel has no subscriber.
func TestScriptRenewalMarks(t *testing.T) {
	s := newScriptLock(t)
	s.acquire("a", 30_000, 0, 0, fmt.Sprint("held a ", scriptStart))
	for i, letter := range []string{"b", "c", "d"} {
		s.wait(letter, int64(i), 1_000_000, i, "-")
	}
	s.channel = "dlock:nobody"
	s.renew("b c d", "queued b 0 1 30002 unsubscribed", "queued c 0 2 30002 unsubscribed", "queued d 0 3 30002 unsubscribed")
	for i, letter := range []string{"b", "c", "d"} {
		s.record(letter, 2_000_000, fmt.Sprintf(`%d.%d 1 %d dlock:nobody {"of": "%s"}`, scriptSecond, 42+i, []int{0, 2, 2}[i], letter))
	}
	s.renew("a", fmt.Sprint("held a ", scriptStart))
	s.listen("dlock:p")
	s.renew("b", "queued b 0 1 20002")
	s.channel = "-"
	s.renew("b e", "queued b 0 1 20002", "gone e 0")
}

// While the lock is held, a renewal examines the first 16 waiters: it drops the dead ones and
// reduces deadlines that are too late.
func TestScriptRenewalTrims(t *testing.T) {
	s := newScriptLock(t)
	s.acquire("a", 30_000, 0, 0, fmt.Sprint("held a ", scriptStart))
	s.wait("b", 0, 3_600_000_000, 0, "-")
	s.crowd(20, 1, 0)
	s.wait("c", 1000, 3_600_000_000, 0, "-")
	s.renew("a", fmt.Sprint("held a ", scriptStart))
	s.queued("b+0 0+16 0+17 0+18 0+19 0+20 c+1000")
	s.record("b", 3_000_000, fmt.Sprintf(`%d.42 1 0 - {"of": "b"}`, scriptSecond))
	s.record("c", 3_600_000_000, fmt.Sprintf(`%d.1042 1 0 - {"of": "c"}`, scriptSecond))
	s.renew("")
	s.queued("b+0 c+1000")
	s.expires(s.n.queue, 60_000)
	s.expires(s.n.waiters, 60_000)
}

// The first eight waiters ask again when the lease ends.
func TestScriptFirstWaitersAskAgain(t *testing.T) {
	s := newScriptLock(t)
	s.acquire("a", 30_000, 0, 0, fmt.Sprint("held a ", scriptStart))
	s.crowd(7, 0, 1_000_000)
	s.wait("b", 100, 1_000_000, 0, "-")
	s.wait("c", 101, 1_000_000, 0, "-")
	s.renew("b c", "queued b 0 8 30002", "queued c 0 9 0")
}

// Held locks are renewed together. A lock of another claim, or a value that is not a lock, is left
// unchanged.
func TestScriptRenewsHeld(t *testing.T) {
	s := newScriptLock(t)
	s.acquire("a", 30_000, 0, 0, fmt.Sprint("held a ", scriptStart))
	s.do("SET", "damaged", scriptID("a"), "PX", 100)
	s.do("RPUSH", "list", "x")
	s.use("other")
	s.acquire("b", 30_000, 0, 0, fmt.Sprint("held b ", scriptStart))
	s.use("last")
	s.now++
	s.acquire("a", 30_000, 0, 0, fmt.Sprint("held a ", scriptStart+1))
	keys := []string{"k", "list", "other", "none", "damaged", "last"}
	args := []any{"echo"}
	for i := range keys {
		args = append(args, scriptID("a"), 10_001+i)
	}
	got := strings.Join(s.texts(s.run(renewHeldScript.Source, keys, args...)), ",")
	if want := fmt.Sprintf("echo,%d,,,,,%d", scriptStart, scriptStart+1); got != want {
		t.Errorf("the answer is %s, want %s", got, want)
	}
	for key, left := range map[string]int64{"k": 10_001, "list": -1, "other": 30_000, "none": -2, "last": 10_006} {
		s.expires(key, left)
	}
}

// Inspect returns the time, the holder and the queue in pages.
func TestScriptInspects(t *testing.T) {
	s := newScriptLock(t)
	keys := []string{s.n.lock, s.n.queue, s.n.waiters, s.n.holders}
	inspect := func(from, want string) []string {
		t.Helper()
		got := s.texts(s.run(inspectScript.Source, keys, from))
		s.equal("what is shown first", strings.Join(got[:min(len(got), 4)], "|"), want)
		return got[min(len(got), 4):]
	}
	inspect("-inf", fmt.Sprint(scriptStart, "||-2|"))
	s.acquire("a", 30_000, 0, 0, fmt.Sprint("held a ", scriptStart))
	value := fmt.Sprintf(`=%s+ %d 1 - {"of": "a"}`, scriptID("a"), scriptStart)
	s.wait("b", 0, 1_000_000, 0, "-")
	s.wait("c", 1, 1_000_000, 0, "-")
	s.do("HDEL", s.n.waiters, scriptID("b"))
	rest := inspect("-inf", fmt.Sprintf("%d|%s|30000|", scriptStart, value))
	s.equal("the queue", strings.Join(rest, "|"), fmt.Sprintf(`%s||%s|%d %d.43 1 0 - {"of": "c"}`,
		scriptID("b"), scriptID("c"), scriptStart+1_000_000, scriptSecond))

	s.use("long")
	keys = []string{s.n.lock, s.n.queue, s.n.waiters}
	s.crowd(501, 0, 1_000_000)
	rest = inspect("-inf", fmt.Sprintf("%d||-2|(%d", scriptStart, scriptStart+499))
	if len(rest) != 1000 || rest[998] != fmt.Sprintf("%032x", 499) {
		t.Errorf("a page has %d elements", len(rest))
	}
	rest = inspect(fmt.Sprint("(", scriptStart+499), fmt.Sprintf("%d||-2|", scriptStart))
	if len(rest) != 2 || rest[0] != fmt.Sprintf("%032x", 500) {
		t.Errorf("the last page is %q", rest)
	}
}

// Look returns the holder of a lock and the number of other waiters.
func TestScriptLooks(t *testing.T) {
	s := newScriptLock(t)
	look := func(letter, want string) {
		t.Helper()
		got := s.texts(s.run(lookScript.Source, []string{s.n.lock, s.n.queue}, expandIDs(letter)))
		s.equal("what is seen", strings.Join(got, "|"), want)
	}
	look("b", fmt.Sprint(scriptStart, "||-2|0"))
	s.acquire("a", 30_000, 0, 0, fmt.Sprint("held a ", scriptStart))
	s.wait("b", 0, 1_000_000, 0, "-")
	value := fmt.Sprintf(`=%s+ %d 1 - {"of": "a"}`, scriptID("a"), scriptStart)
	look("b", fmt.Sprintf("%d|%s|30000|0", scriptStart, value))
	s.wait("c", 1, 1_000_000, 0, "-")
	look("b", fmt.Sprintf("%d|%s|30000|1", scriptStart, value))
	look("", fmt.Sprintf("%d|%s|30000|2", scriptStart, value))
}
