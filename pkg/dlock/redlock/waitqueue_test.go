package redlock

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/internal/redisnode"
)

// A quietDriver has no nodes: the test provides their messages.
type quietDriver struct {
	*testing.T
	*redDriver
	q *waitQueue
	c *claim
}

// startQuiet returns a driver with three nodes, of which two are a majority, and one claim that
// waits for the key k.
func startQuiet(t *testing.T) *quietDriver {
	d := &redDriver{EventQueue: driver.NewEventQueue(16), prefix: "p:", majority: 2, claims: map[claimID]*claim{}, queues: map[string]*waitQueue{}}
	q := d.enter("k")
	c := &claim{key: "k", id: "id", waits: true, phase: driver.Queued, until: time.Now().Add(time.Hour)}
	q.waiting = []*claim{c}
	return &quietDriver{t, d, q, c}
}

func (q *quietDriver) says(words ...any) {
	var text []string
	for _, w := range words {
		text = append(text, fmt.Sprint(w))
	}
	q.onMessage(channelPrefix+"p:k", strings.Join(text, redisnode.Separator))
}

// setUnheard sets the count of the claim, and returns the previous one.
func (q *quietDriver) setUnheard(n int) (was int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	was, q.c.unheard = q.c.unheard, n
	return was
}

// asked checks how often the engine was asked to renew the claim until now, once all timers have
// fired.
func (q *quietDriver) asked(want int) {
	q.Helper()
	time.Sleep(time.Minute)
	synctest.Wait()
	got := 0
	for {
		select {
		case ev := <-q.Events():
			got++
			if ev.Key != "k" || ev.ID != "id" || ev.State != (driver.State{}) {
				q.Errorf("the event is %+v", ev)
			}
			continue
		default:
		}
		break
	}
	if got != want {
		q.Errorf("asked %d times, want %d", got, want)
	}
}

// A waiter tries when the first node says that the lock is free, and when a majority has said so. A
// late message about an older token has no effect.
func TestMessageOfAFreeLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := startQuiet(t)
		for _, step := range []struct {
			says  []any
			asked int
		}{
			{[]any{"free", 10, 1}, 1},
			{[]any{"free", 10, 1}, 1}, // a majority
			{[]any{"free", 10, 1}, 0}, // the third
			{[]any{"free", 9, 1}, 0},
			{[]any{"free", 11, 1}, 1},
			{[]any{"taken", 12}, 0},
			{[]any{"free", 11, 1}, 0}, // late
			{[]any{"taken", 5}, 0},
			{[]any{"free", 11, 1}, 0},
			{[]any{"free", 12, 1}, 1},
			{[]any{"free", 13}, 0}, // damaged
			{[]any{"free"}, 0},
			{[]any{"free", "x", 1}, 0},
			{[]any{"free", 14, 0}, 1},
			{[]any{"free", 15, "x"}, 1},
		} {
			q.setUnheard(3)
			q.says(step.says...)
			heard := len(step.says) > 1 && step.says[1] != "x"
			if n := q.setUnheard(0); (n == 0) != heard && step.asked == 0 {
				t.Errorf("%v: unheard is %d", step.says, n)
			}
			q.asked(step.asked)
			if t.Failed() {
				t.Fatalf("after %v", step.says)
			}
		}
		q.onMessage(channelPrefix+"q:k", "free\x0120\x011")     // of another prefix
		q.onMessage(channelPrefix+"p:other", "free\x0120\x011") // no claim waits for it
		q.asked(0)
	})
}

// A lock that was taken again before the waiter tried is not tried, unless that message is older
// than the one that made it try.
func TestMessageOfATakenLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for token, want := range map[int]int{9: 1, 10: 1, 11: 0} {
			q := startQuiet(t)
			q.says("free", 10, maxWindow)
			q.says("taken", token)
			q.asked(want)
		}
	})
}

// Contenders are spread over the time that each of them takes, within limits.
func TestWindow(t *testing.T) {
	d := &redDriver{}
	if w := d.window(1); w != 200*time.Microsecond {
		t.Errorf("before anything was measured, one has %v", w)
	}
	d.pace.add(8 * time.Millisecond)
	for contenders, want := range map[int]time.Duration{0: 0, 1: 8, 3: 24, 32: 256, 33: 256} {
		if w := d.window(contenders); w != want*time.Millisecond {
			t.Errorf("%d have %v, want %d ms", contenders, w, want)
		}
	}
	d.pace.add(16 * time.Millisecond)
	if p := d.pace.get(); p != 9*time.Millisecond {
		t.Errorf("the mean of 8 and, by an eighth, 16 ms is %v", p)
	}
	d.pace.add(time.Hour)
	if p := d.pace.get(); p != 50*time.Millisecond {
		t.Errorf("the longest pace is %v", p)
	}
	for range 1000 {
		if s := scatter(time.Millisecond); s < 0 || s >= time.Millisecond {
			t.Fatalf("scattered by %v", s)
		}
	}
	if s := scatter(0); s != 0 {
		t.Errorf("scattered by %v in no time", s)
	}
}

// Only the first waiter asks the nodes, and not before its time.
func TestBlocked(t *testing.T) {
	now := time.Now()
	for _, tc := range []struct {
		name    string
		prepare func(q *quietDriver, other *claim)
		blocked bool
		wait    time.Duration
	}{
		{name: "first", prepare: func(*quietDriver, *claim) {}},
		{name: "gone", blocked: true, prepare: func(q *quietDriver, _ *claim) { q.c.phase = driver.Gone }},
		{name: "second", blocked: true, prepare: func(q *quietDriver, other *claim) { q.q.waiting = []*claim{other, q.c} }},
		{name: "does not wait, and another does", blocked: true, prepare: func(q *quietDriver, other *claim) {
			q.c.waits, q.q.waiting = false, []*claim{other}
		}},
		{name: "does not wait", prepare: func(q *quietDriver, _ *claim) { q.c.waits, q.q.waiting = false, nil }},
		{name: "not soon", blocked: true, wait: time.Second, prepare: func(q *quietDriver, _ *claim) { q.c.notSoon = now.Add(time.Second) }},
		{name: "soon enough", prepare: func(q *quietDriver, _ *claim) { q.c.notSoon = now }},
		{name: "others go first", blocked: true, wait: 2 * time.Second, prepare: func(q *quietDriver, _ *claim) {
			q.yields = map[string]time.Time{"k": now.Add(2 * time.Second)}
		}},
		{name: "others went first", prepare: func(q *quietDriver, _ *claim) { q.yields = map[string]time.Time{"k": now} }},
		{name: "a release is under way", blocked: true, prepare: func(q *quietDriver, other *claim) {
			other.phase, q.q.holder = driver.Gone, other
		}},
		{name: "a release took too long", prepare: func(q *quietDriver, other *claim) {
			other.phase, other.until, q.q.holder = driver.Gone, now, other
		}},
		{name: "held by a claim of ours", prepare: func(q *quietDriver, other *claim) { other.phase, q.q.holder = driver.Held, other }},
	} {
		q := startQuiet(t)
		tc.prepare(q, &claim{key: "k", id: "other", waits: true, phase: driver.Queued, until: now.Add(time.Hour)})
		blocked, wait := q.blocked(q.q, q.c, now)
		if blocked != tc.blocked || wait != tc.wait {
			t.Errorf("%s: blocked %v for %v", tc.name, blocked, wait)
		}
		if _, left := q.yields["k"]; left && !blocked {
			t.Errorf("%s: it still yields", tc.name)
		}
	}
}
