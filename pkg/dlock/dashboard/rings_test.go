package dashboard

import (
	"context"
	"fmt"
	"math"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock"
)

// waitsFor builds edges: "a>b" means that a waits for a lock that b holds.
func waitsFor(edges ...string) *waitGraph {
	s := &snapshot{rows: map[string]*row{}}
	for _, e := range edges {
		waiters, holders, _ := strings.Cut(e, ">")
		r := &row{Key: e, Mode: modeExclusive}
		for _, o := range holders {
			r.holders = append(r.holders, claim{Owner: string(o), PID: 1})
		}
		for _, o := range waiters {
			r.queue = append(r.queue, claim{Owner: string(o), PID: 1})
		}
		s.rows[e] = r
	}
	return newWaitGraph(contestedBy(s))
}

// contestedBy returns the contested locks of a snapshot.
func contestedBy(s *snapshot) (locks []contested) {
	for _, r := range s.contestedRows() {
		locks = append(locks, contested{"s", r.Key, ownersOf(r.holders, math.MaxInt64), ownersOf(r.queue, math.MaxInt64)})
	}
	return locks
}

func TestRings(t *testing.T) {
	for name, c := range map[string]struct {
		edges []string
		want  [][]string // the keys of each ring
	}{
		"nothing":          {nil, nil},
		"a chain":          {[]string{"a>b", "b>c"}, nil},
		"oneself":          {[]string{"a>a"}, nil}, // goroutines of one process
		"two":              {[]string{"a>b", "b>a"}, [][]string{{"a>b", "b>a"}}},
		"three and a tail": {[]string{"z>a", "a>b", "b>c", "c>a"}, [][]string{{"a>b", "b>c", "c>a"}}},
		"the shorter one":  {[]string{"a>b", "b>a", "b>c", "c>a"}, [][]string{{"a>b", "b>a"}, {"c>a", "a>b", "b>c"}}},
		"two upgrades":     {[]string{"ab>ab"}, [][]string{{"ab>ab", "ab>ab"}}}, // both hold, and each waits for the other
		"one upgrade":      {[]string{"a>ab"}, nil},
		"many of one lock": {[]string{"abc>xyz", "y>b"}, [][]string{{"abc>xyz", "y>b"}}},
		"between rings":    {[]string{"a>b", "b>a", "b>m", "m>x", "x>y", "y>x"}, [][]string{{"a>b", "b>a"}, {"x>y", "y>x"}}},
		"two rings":        {[]string{"a>b", "b>a", "x>y", "y>x"}, [][]string{{"a>b", "b>a"}, {"x>y", "y>x"}}},
	} {
		var got [][]string
		for _, r := range waitsFor(c.edges...).rings() {
			var keys []string
			for _, s := range r.Steps {
				keys = append(keys, s.Key)
			}
			got = append(got, keys)
		}
		if !slices.EqualFunc(got, c.want, slices.Equal) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

// A waiter for one of several permits depends on no single holder.
func TestRingsIgnorePermits(t *testing.T) {
	s := &snapshot{rows: map[string]*row{"k": {Key: "k", Mode: "permit", Limit: 2, holders: []claim{{Owner: "a", PID: 1}}, queue: []claim{{Owner: "c", PID: 1}}}}}
	if locks := contestedBy(s); len(locks) != 0 {
		t.Errorf("%v", locks)
	}
}

func TestRingsAreBounded(t *testing.T) {
	var locks []contested
	for i := range 2 * maxRings {
		a, b := []owner{{fmt.Sprint("a", i), "", 1}}, []owner{{fmt.Sprint("b", i), "", 1}}
		locks = append(locks, contested{"s", fmt.Sprint("k", i), b, a}, contested{"s", fmt.Sprint("l", i), a, b})
	}
	if n := len(newWaitGraph(locks).rings()); n != maxRings {
		t.Errorf("%d", n)
	}
}

// The search takes memory for each claim, not for each pair of a waiter and a holder.
func TestRingsOfManyClaims(t *testing.T) {
	const many = 2000
	r := &row{Key: "k", Mode: "shared"}
	for i := range many {
		c := claim{Owner: fmt.Sprint("owner-", i), PID: 1} // each holds the lock, and waits for the others
		r.holders, r.queue = append(r.holders, c), append(r.queue, c)
	}
	p := &poller{name: "s", latest: &snapshot{at: time.Now(), rows: map[string]*row{"k": r}}}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	rings := findRings([]*poller{p})
	runtime.ReadMemStats(&after)
	if len(rings) != maxRings || len(rings[0].Steps) != 2 {
		t.Errorf("%d rings", len(rings))
	}
	const most = 2 * many * 4096
	if took := after.TotalAlloc - before.TotalAlloc; took > most {
		t.Errorf("%d KiB for %d claims, at most %d KiB are allowed", took>>10, 2*many, most>>10)
	}
}

// A reading sees its keys one after the other. A ring of which it saw parts at different times is none.
func TestRingOfDifferentTimes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := withoutServer(t)
		ann, bob := dlock.WithInfo(dlock.Info{Owner: "ann", PID: 1}), dlock.WithInfo(dlock.Info{Owner: "bob", PID: 2})
		ctx, cancel := context.WithCancel(context.Background())
		var waiters sync.WaitGroup
		defer waiters.Wait()
		defer cancel()
		wait := func(key string, as dlock.LockOption) {
			waiters.Go(func() {
				if g, err := f.locks.Acquire(ctx, key, as); err == nil {
					<-ctx.Done()
					_ = g.Unlock(context.Background())
				}
			})
			time.Sleep(time.Millisecond)
		}
		f.take("left", ann)
		right := f.take("right", bob)
		wait("right", ann)
		changed := make(chan struct{})
		change := sync.OnceFunc(func() {
			if err := right.Unlock(context.Background()); err != nil { // ann gets it, and could go on
				t.Error(err)
			}
			wait("left", bob)
			close(changed)
		})
		hook := func(key string, answered bool) {
			if key == "left" && !answered {
				<-changed
			}
			if key == "right" && answered {
				change()
			}
		}
		f.store.onInspect.Store(&hook)
		p := f.page.sources[0]
		defer p.join()()
		time.Sleep(minInterval / 2)
		if n := len(newWaitGraph(contestedBy(p.current())).rings()); n != 1 {
			t.Fatalf("the reading shows %d rings", n)
		}
		for range 3 {
			if got := *f.page.currentRings(); len(got) != 0 {
				t.Errorf("%+v", got)
			}
			time.Sleep(minInterval)
		}
	})
}

// What was read of a ring must have been so at one time, and not long ago.
func TestRingsOfSeveralReadings(t *testing.T) {
	now := time.Now()
	for name, c := range map[string]struct {
		change func(a, b *snapshot)
		want   int
	}{
		"read twice":           {func(_, _ *snapshot) {}, 1},
		"read once":            {func(a, _ *snapshot) { a.began = 1 }, 0},
		"one of them long ago": {func(a, _ *snapshot) { a.began, a.rows["k"].holders[0].seen, a.rows["k"].queue[0].seen = 3, 1, 1 }, 0},
		"the last reading":     {func(_, b *snapshot) { b.err = "down" }, 0},
		"not read for a while": {func(_, b *snapshot) { b.at = now.Add(-time.Hour) }, 0},
		"a slow reading":       {func(_, b *snapshot) { b.at, b.round = now.Add(-10*time.Minute), 6*time.Minute }, 1},
		"another lock is newer": {func(a, _ *snapshot) {
			a.rows["n"] = &row{Key: "n", holders: []claim{{seen: 9}}, queue: []claim{{seen: 9}}}
		}, 1},
	} {
		reading := func(holder, waiter string) *snapshot {
			return &snapshot{at: now, began: 6, rows: map[string]*row{"k": {
				Key: "k", holders: []claim{{Owner: holder, PID: 1, seen: 5}}, queue: []claim{{Owner: waiter, PID: 1, seen: 5}},
			}}}
		}
		a, b := reading("ann", "bob"), reading("bob", "ann")
		c.change(a, b)
		if got := findRings([]*poller{{name: "a", latest: a}, {name: "b", latest: b}}); len(got) != c.want {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

// Two owners that hold what the other wants are reported.
func TestDeadlockIsReported(t *testing.T) {
	f := setUp(t)
	ann := dlock.WithInfo(dlock.Info{Owner: "ann", Host: "h", PID: 1})
	bob := dlock.WithInfo(dlock.Info{Owner: "bob", Host: "h", PID: 2})
	f.take("left", ann)
	f.take("right", bob)
	f.queue("right", ann)
	if got := get[health](f, "/api/v1/health"); len(got.Rings) != 0 {
		t.Errorf("%+v", got.Rings)
	}
	f.queue("left", bob)
	f.eventually("a ring", func() bool {
		got := get[health](f, "/api/v1/health").Rings
		return len(got) == 1 && slices.Equal(got[0].Steps, []step{{"ann", "h", 1, "memory", "right"}, {"bob", "h", 2, "memory", "left"}})
	})
	if got := get[health](f, "/api/v1/health").Sources[0]; got.Level != dlock.LevelWarning || len(got.Findings) != 1 || got.Findings[0].Fix == "" {
		t.Errorf("%+v", got)
	}
}
