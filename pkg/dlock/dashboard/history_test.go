package dashboard

import (
	"fmt"
	"testing"
	"time"

	"github.com/ceyewan/genesis/internal/lockreader"
	"github.com/ceyewan/genesis/internal/measure"
	"github.com/ceyewan/genesis/pkg/dlock"
)

// held is a snapshot in which one claim holds k, and others wait.
func held(at time.Time, token string, since time.Time, waiters ...claim) *snapshot {
	s := &snapshot{at: at, rows: map[string]*row{}}
	if token != "" {
		c := claim{Mode: modeExclusive, Token: token, Owner: "owner-" + token, PID: 1, Since: since.UnixMilli()}
		s.rows["k"] = &row{Key: "k", Mode: modeExclusive, Token: token, holders: []claim{c}, queue: waiters}
	}
	return s
}

func TestHistory(t *testing.T) {
	h, gap := newHistory(maxAllHoldings), 10*time.Second
	t0 := time.UnixMilli(1_000_000)
	at := func(ms int) time.Time { return t0.Add(time.Duration(ms) * time.Millisecond) }
	second := claim{Mode: modeExclusive, Owner: "owner-2", PID: 1, Since: at(200).UnixMilli()}
	steps := []*snapshot{
		{at: t0, rows: map[string]*row{}},
		held(at(500), "1", at(100)),
		held(at(1000), "1", at(100), second),
		held(at(1500), "2", at(1300)), // handed over
		held(at(2000), "", t0),        // free
		held(at(2500), "3", at(2200)),
		held(at(60_000), "4", at(59_000)), // after a time without readings
	}
	for i := 1; i < len(steps); i++ {
		h.observe(steps[i-1], steps[i], gap)
	}
	got := h.of("k")
	want := []struct {
		token  string
		ended  time.Time
		waited int64
		unsure bool
	}{
		{"1", at(1300), -1, false}, // the next holder says when
		{"2", at(2000), 1100, false},
		{"3", at(2500), -1, true}, // last seen
		{"4", time.Time{}, -1, false},
	}
	if len(got) != len(want) {
		t.Fatalf("%+v", got)
	}
	for i, w := range want {
		g := got[i]
		waited := int64(-1)
		if g.Waited != nil {
			waited = *g.Waited
		}
		ended := int64(0)
		if !w.ended.IsZero() {
			ended = w.ended.UnixMilli()
		}
		if g.Token != w.token || g.Ended != ended || waited != w.waited || g.Unsure != w.unsure {
			t.Errorf("%d: %+v, waited %d, want %+v", i, g, waited, w)
		}
	}
}

// The history has bounds, in each lock and in their number.
func TestHistoryIsBounded(t *testing.T) {
	h := newHistory(maxAllHoldings)
	t0 := time.UnixMilli(1_000_000)
	last := &snapshot{at: t0, rows: map[string]*row{}}
	for i := range maxHoldings + 50 {
		at := t0.Add(time.Duration(i+1) * time.Second)
		next := held(at, fmt.Sprint(i+1), at)
		h.observe(last, next, time.Minute)
		last = next
	}
	if got := h.of("k"); len(got) != maxHoldings || got[maxHoldings-1].Token != fmt.Sprint(maxHoldings+50) || got[maxHoldings-1].Ended != 0 {
		t.Errorf("%d holdings, the last is %+v", len(got), got[len(got)-1])
	}
	for i := range maxHistories + 10 {
		h.open(fmt.Sprint("other-", i))
	}
	if len(h.locks) != maxHistories || h.order.Len() != maxHistories {
		t.Errorf("%d locks, %d in order", len(h.locks), h.order.Len())
	}
	if got := h.of("k"); len(got) != 0 {
		t.Errorf("the oldest is still there: %d", len(got))
	}
}

// A row that differs by jitter only is the same row, so that it is not sent again.
func TestSteadyRows(t *testing.T) {
	row1 := func(since, until int64, queue ...claim) *row {
		r := &row{
			Key: "k", Mode: modeExclusive, Token: "5", queue: queue,
			holders: []claim{{Mode: modeExclusive, Token: "5", Owner: "ann", Since: since, Until: until, Lease: until - 1000}},
		}
		r.finish("memory")
		return r
	}
	old := row1(1000, 9000)
	if got := row1(1300, 8700).steady(old); got != old {
		t.Errorf("%+v", got)
	}
	renewed := row1(1001, 12000).steady(old)
	if renewed == old || renewed.holders[0].Since != 1000 || renewed.Holders[0].Until != 12000 || renewed.Holders[0].Lease != 11000 {
		t.Errorf("%+v", renewed)
	}
	waiter := claim{Mode: modeExclusive, Owner: "bob", Since: 2000}
	queued := row1(1000, 9000, waiter).steady(old)
	if queued == old || queued.WaitingSince != 2000 || *queued.Waiters != 1 {
		t.Errorf("%+v", queued)
	}
	waiter.Since = 2100
	if got := row1(1000, 9000, waiter).steady(queued); got != queued {
		t.Errorf("%+v", got)
	}
}

func TestGreater(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want bool
	}{{"10", "9", true}, {"9", "10", false}, {"9", "9", false}, {"9", "", true}, {"9223372036854775807", "999999999999999999", true}} {
		if got := greater(c.a, c.b); got != c.want {
			t.Errorf("%s > %s: %v", c.a, c.b, got)
		}
	}
}

// Holders keep their places when a renewal changes the order in which the backend tells them.
func TestHoldersKeepTheirOrder(t *testing.T) {
	claims := []dlock.Claim{
		{Phase: dlock.PhaseHeld, Mode: dlock.ModeShared, Token: 9, Info: dlock.Info{Owner: "bob"}},
		{Phase: dlock.PhaseHeld, Mode: dlock.ModeShared, Token: 10, Info: dlock.Info{Owner: "ann"}},
		{Phase: dlock.PhaseHeld, Mode: dlock.ModeShared, Token: 8, Info: dlock.Info{Owner: "eve"}},
	}
	for range claims {
		claims = append(claims[1:], claims[0])
		r := newRow(&lockreader.Entry{Key: "k", Claims: claims, At: time.Now()}, dlock.BackendRedis)
		if got := r.holders[0].Owner + r.holders[1].Owner + r.holders[2].Owner; got != "evebobann" || r.Holders[0].Owner != "eve" {
			t.Errorf("%s", got)
		}
	}
}

// A backend that counts the wait as part of the hold does not spoil the times.
func TestWaitIsNoHold(t *testing.T) {
	h := newHistory(maxAllHoldings)
	at := func(ms int) time.Time { return time.UnixMilli(1_000_000).Add(time.Duration(ms) * time.Millisecond) }
	entry := func(now time.Time, claims ...dlock.Claim) *lockreader.Entry {
		return &lockreader.Entry{Key: "k", Claims: claims, At: now}
	}
	ann := func(ms int) dlock.Claim {
		return dlock.Claim{Phase: dlock.PhaseHeld, Mode: dlock.ModeExclusive, Token: 1, Info: dlock.Info{Owner: "ann", PID: 1}, Age: time.Duration(ms) * time.Millisecond}
	}
	bob := func(phase dlock.Phase, token int64, ms int) dlock.Claim {
		return dlock.Claim{Phase: phase, Mode: dlock.ModeExclusive, Token: token, Info: dlock.Info{Owner: "bob", PID: 2}, Age: time.Duration(ms) * time.Millisecond}
	}
	last := &snapshot{rows: map[string]*row{}}
	for _, e := range []*lockreader.Entry{
		entry(at(0), ann(9000)), // the first reading: ann may have waited
		entry(at(1000), ann(10_000), bob(dlock.PhaseQueued, 0, 500)),
		entry(at(5000), ann(14_000), bob(dlock.PhaseQueued, 0, 4500)),
		entry(at(6000), bob(dlock.PhaseHeld, 2, 5500)),
		entry(at(8000), bob(dlock.PhaseHeld, 2, 7500)),
	} {
		r := newRow(e, dlock.BackendEtcd)
		r.datePromotions(last.rows["k"], e.At.UnixMilli(), last.readAt(), time.Minute)
		next := &snapshot{at: e.At, rows: map[string]*row{"k": r.steady(last.rows["k"])}}
		h.observe(last, next, time.Minute)
		last = next
	}
	if c := last.rows["k"].Holders[0]; c.Since != at(6000).UnixMilli() || c.WithWait {
		t.Errorf("%+v", c)
	}
	got := h.of("k")
	if len(got) != 2 || !got[0].WithWait || got[0].Ended != at(6000).UnixMilli() || got[1].WithWait || got[1].Waited == nil || *got[1].Waited != 5500 {
		t.Errorf("%+v", got)
	}
}

// A lock that is no longer among those that are read may still be held.
func TestHistoryBeyondTheLimit(t *testing.T) {
	h := newHistory(maxAllHoldings)
	at := func(s int) time.Time { return time.UnixMilli(1_000_000).Add(time.Duration(s) * time.Second) }
	seen, missing, again := held(at(1), "1", at(0)), &snapshot{at: at(2), rows: map[string]*row{}, more: true}, held(at(3), "1", at(0))
	h.observe(&snapshot{at: at(0), rows: map[string]*row{}}, seen, time.Minute)
	h.observe(seen, missing, time.Minute)
	if got := h.of("k"); len(got) != 1 || !got[0].Unsure || got[0].Ended != at(1).UnixMilli() {
		t.Errorf("%+v", got)
	}
	h.observe(missing, again, time.Minute)
	if got := h.of("k"); len(got) != 1 || got[0].Unsure || got[0].Ended != 0 {
		t.Errorf("seen again: %+v", got)
	}
}

// A lock with more holders than its history has room for keeps those that it has.
func TestHistoryOfManyHolders(t *testing.T) {
	h := newHistory(maxAllHoldings)
	now := &row{Key: "k", Mode: "shared"}
	for i := range maxHoldings + 20 {
		now.holders = append(now.holders, claim{Mode: "shared", Token: fmt.Sprint(i + 1), Since: 1})
	}
	h.change(nil, now, 1000, 500, false)
	first := h.of("k")
	h.change(now, now, 2000, 1000, false)
	got := h.of("k")
	if len(got) != maxHoldings || got[0].Token != first[0].Token || got[maxHoldings-1].Token != first[maxHoldings-1].Token {
		t.Errorf("%d holdings, %+v to %+v", len(got), got[0], got[len(got)-1])
	}
	now = &row{Key: "k", Mode: "shared", holders: now.holders[50:]}
	h.change(nil, now, 3000, 2000, false)
	if got := h.of("k"); len(got) != maxHoldings || got[maxHoldings-1].Token != fmt.Sprint(maxHoldings+20) || got[maxHoldings-1].Ended != 0 {
		t.Errorf("%d holdings, the last is %+v", len(got), got[len(got)-1])
	}
}

// All locks of a source have one bound together.
func TestHistoryIsBoundedInAll(t *testing.T) {
	h := newHistory(10)
	for i := range 8 {
		now := &row{Key: fmt.Sprint("k", i), Mode: "shared", holders: []claim{{Token: "1"}, {Token: "2"}}}
		h.change(nil, now, 1000, 500, false)
	}
	total := 0
	for i := range 8 {
		total += len(h.of(fmt.Sprint("k", i)))
	}
	if total != 10 || h.count != 10 || len(h.of("k0")) != 0 || len(h.of("k7")) != 2 {
		t.Errorf("%d holdings, counted %d", total, h.count)
	}
}

// A long queue takes about the work of ten queues that are a tenth as long, not ten times that. The time of the processors counts:
// a busy machine takes longer.
func TestHistoryOfLongQueues(t *testing.T) {
	observe := func(n int) time.Duration {
		queue := make([]claim, n)
		for i := range queue {
			queue[i] = claim{Mode: modeExclusive, Owner: "owner", PID: 1, Since: int64(1 + i)}
		}
		now := time.Now()
		last, next := held(now, "1", now, queue...), held(now.Add(time.Second), "2", now, queue...)
		next.rows["k"].holders[0].Owner = "owner" // it may have been any of the waiters
		h := newHistory(maxAllHoldings)
		before := measure.CPU()
		h.observe(last, next, time.Minute)
		return measure.CPU() - before
	}
	const few = 1000
	short, long := time.Hour, time.Hour
	for range 5 {
		sum := time.Duration(0)
		for range 10 {
			sum += observe(few)
		}
		short, long = min(short, sum), min(long, observe(10*few))
	}
	t.Logf("%v for ten times %d waiters, %v for %d", short, few, long, 10*few)
	if long > 5*short {
		t.Error("the work grows with the square of the queue")
	}
}
