package oracle_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/ceyewan/genesis/lab/internal/event"
	"github.com/ceyewan/genesis/lab/internal/oracle"
	"github.com/ceyewan/genesis/lab/internal/schedule"
	"github.com/ceyewan/genesis/pkg/dlock"
)

// The keys of calls for several.
const (
	keyA, keyB = "several-{0}-0", "several-{0}-1"
	longA      = "several-long-{1}-0"
)

// A call is one for several keys, of which each is an attempt of its own.
type call struct {
	*story
	worker, name string
	keys         []string
}

// together begins a call of a worker. nth tells its calls apart.
func (s *story) together(at int64, worker string, nth int, keys ...string) *call {
	c := &call{s, worker, fmt.Sprint(worker, "/7/", nth), keys}
	c.all(at, event.Call, func(_ int, e *event.Event) {
		e.Dur, e.Verb, e.Plan = 6000*ms, "acquire-all", &event.Plan{Lease: 2000 * ms, Together: c.name}
	})
	return c
}

// all logs an event for each of the keys.
func (c *call) all(at int64, kind event.Kind, change func(i int, e *event.Event)) {
	for i, key := range c.keys {
		e := event.Event{At: at * ms, Kind: kind, Worker: c.worker, PID: int(c.worker[0]), Key: key, Attempt: fmt.Sprint(c.name, "/", i)}
		change(i, &e)
		c.Events = append(c.Events, e)
	}
	slices.SortStableFunc(c.Events, func(a, b event.Event) int { return int(a.At - b.At) })
}

// hold is the rest of a call that was granted all its keys, with the first token and those after it.
func (c *call) hold(enter, exit, released, token int64) *call {
	fenced := func(i int, e *event.Event) { e.Fence = token + int64(i) }
	c.all(enter, event.Enter, fenced)
	c.all(exit, event.Exit, func(i int, e *event.Event) { fenced(i, e); e.Note = event.Done })
	c.all(released, event.Released, func(_ int, e *event.Event) { e.Dur = (released - exit) * ms })
	return c
}

// fail is the rest of a call that did not get one of its keys.
func (c *call) fail(at int64, key string, err error) *call {
	c.all(at, event.Failed, func(_ int, e *event.Event) {
		e.Note = event.Withdrawn
		if e.Key == key {
			e.Note = err.Error()
		}
	})
	return c
}

// left is a look that found a claim of a call that no attempt was granted.
func (c *call) left(at int64, key string) {
	c.Stored = []oracle.StoredClaim{{
		Before: at * ms, After: (at + 5) * ms, Key: key, PID: int(c.worker[0]), Phase: "held", Token: 99, Purpose: c.name, Left: time.Second,
	}}
}

// Every key is judged by itself.
func TestTwoHoldersOfOneOfSeveralKeys(t *testing.T) {
	s := newStory()
	s.together(10, "a", 1, keyA, keyB).hold(20, 30, 40, 1)
	s.together(15, "b", 1, keyB).hold(41, 50, 60, 5)
	if v := s.expect(t); v.Sections != 3 || v.Checked != 6 {
		t.Errorf("%+v", v)
	}
	s = newStory()
	s.together(10, "a", 1, keyA, keyB).hold(20, 30, 40, 1)
	s.together(15, "b", 1, keyB).hold(29, 50, 60, 5)
	for _, x := range s.expect(t, "overlap", "history").Violations {
		if x.Key != keyB {
			t.Errorf("%+v", x)
		}
	}
	s = newStory()
	s.together(10, "a", 1, keyA, keyB).hold(20, 30, 40, 1)
	s.together(41, "b", 1, keyB).hold(45, 50, 60, 2)
	s.expect(t, "fence", "history")
}

// While a call waits for one key it may have another without having entered, and nobody else enters that.
func TestAKeyThatIsHeldInAWait(t *testing.T) {
	s := newStory()
	s.together(10, "c", 1, keyB).hold(20, 3000, 3010, 5)
	s.together(15, "a", 1, keyA, keyB).hold(3011, 6000, 6010, 6) // has keyA since 15
	s.together(20, "b", 1, keyA).fail(6020, keyA, dlock.ErrUnavailable)
	s.expect(t)
}

// Those that lock several keys do not wait for each other in a circle: somebody is inside, or a lease is
// over.
func TestACircleOfWaiters(t *testing.T) {
	stuck := func(first, second string, enter int64) *story {
		s := newStory()
		s.together(10, "a", 1, first, second).fail(6010, second, dlock.ErrUnavailable)
		s.together(11, "b", 1, second, first).fail(6011, first, dlock.ErrUnavailable)
		if enter != 0 {
			s.together(12, "c", 1, second).hold(enter, enter+10, enter+20, 1)
		}
		return s
	}
	stuck(keyA, keyB, 0).expect(t, "idle")
	stuck(keyA, keyB, 5000).expect(t, "idle")
	stuck(keyA, keyB, 3000).expect(t)
	stuck(longA, "several-long-{1}-1", 0).expect(t) // the lease of one that died may last
	s := stuck(keyA, keyB, 0)
	s.hold("d", 10, 20, 6020, 6030, 1) // of another key
	s.expect(t, "idle")
}

// What a call has while it waits is none of a call that has ended. That the same process asks for the key again
// excuses nothing.
func TestAKeyLeftByAFailedCall(t *testing.T) {
	s := newStory()
	c := s.together(10, "a", 1, keyA, keyB)
	c.left(2000, keyA)
	c.fail(2500, keyB, dlock.ErrUnavailable)
	s.expect(t)
	c.left(3499, keyA) // it is released in the background
	s.expect(t)
	c.left(3501, keyA)
	s.expect(t, "lingering")
	again := s.together(2600, "a", 2, keyA, keyB).fail(5000, keyB, dlock.ErrUnavailable)
	s.expect(t, "lingering")
	again.left(3501, keyA)
	s.expect(t)
	again.left(3501, "several-{0}-2") // a key that it did not ask for
	s.expect(t, "info", "lingering")
}

// A key that a call gave up while it waited for another, or when it failed, may be one whose release a master
// had answered that was then killed; not one that was killed before or after that.
func TestAKeyGivenUpInAFailover(t *testing.T) {
	told := func(kill int64) *story {
		s := newStory()
		s.Mode = schedule.Beyond
		s.Faults = []oracle.Struck{{Fault: schedule.Fault{Kind: schedule.Failover}, From: (kill - 1) * ms, Hit: kill * ms, To: (kill + 300) * ms}}
		return s
	}
	for kill, want := range map[int64][]string{900: {"lingering"}, 1500: nil, 2900: nil, 3200: {"lingering"}} {
		s := told(kill)
		s.together(1000, "a", 1, longA, keyB).fail(2000, keyB, dlock.ErrLockHeldByOther).left(4600, longA)
		s.Events[0].Plan.HasWait, s.Events[1].Plan.HasWait = true, true
		s.expect(t, want...)
	}
	for kill, want := range map[int64][]string{900: {"ghost"}, 1500: nil, 3200: {"ghost"}} {
		s := told(kill)
		c := s.together(1000, "a", 1, longA, keyB).hold(2000, 2010, 2020, 1) // after it had given longA up
		s.Ghosts = []oracle.Ghost{{Key: longA, PID: 'a', Phase: "held", Token: 99, Purpose: c.name, Left: time.Second}}
		s.expect(t, want...)
		s.Ghosts[0].Token = 1 // which it released at 2020
		s.expect(t, "ghost")
		s.Ghosts[0].Token, s.Ghosts[0].Purpose = 99, "a/2/1" // of a call for one key
		s.expect(t, "ghost")
	}
}

// A key that is lost while its call waits for another is lost like any other.
func TestAKeyLostInAWait(t *testing.T) {
	s := newStory()
	s.together(10, "a", 1, keyA, keyB).fail(3000, keyA, dlock.ErrOwnershipLost)
	s.expect(t, "false-loss")
	s.fault(schedule.BlackHole, 0, 500, 2500)
	s.expect(t)
	for _, at := range [][2]int64{{3100, 5100}, {20, 990}} { // later, or more than a lease before
		s.Faults[0].From, s.Faults[0].To = at[0]*ms, at[1]*ms
		s.expect(t, "false-loss")
	}
	s = newStory()
	s.together(10, "a", 1, keyA, keyB).fail(100, keyB, dlock.ErrUnavailable)
	s.expect(t) // keyA was not lost
}

// Of several, the one that is lost is, and all are left.
func TestOneOfSeveralIsLost(t *testing.T) {
	s := newStory()
	c := s.together(10, "a", 1, keyA, keyB)
	c.hold(20, 3000, 3010, 1)
	for i := range s.Events {
		e := &s.Events[i]
		switch {
		case e.Key != keyA:
		case e.Kind == event.Exit:
			e.Note = event.Lost
		case e.Kind == event.Released:
			e.Note = dlock.ErrOwnershipLost.Error()
		}
	}
	v := s.expect(t, "false-loss")
	if len(v.Violations) != 1 || v.Violations[0].Key != keyA || v.Losses != 1 {
		t.Errorf("%+v", v)
	}
}

// A call that waits is not told that another holds one of its keys.
func TestSeveralKeysAreRefused(t *testing.T) {
	s := newStory()
	s.together(10, "a", 1, keyA, keyB).fail(500, keyB, dlock.ErrLockHeldByOther)
	v := s.expect(t, "refused")
	if len(v.Violations) != 1 || v.Violations[0].Key != keyB {
		t.Errorf("%+v", v)
	}
	for i := range s.Events {
		if p := s.Events[i].Plan; p != nil {
			p.HasWait = true // 0
		}
	}
	s.expect(t)
}
