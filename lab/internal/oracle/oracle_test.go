package oracle_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ceyewan/genesis/lab/internal/event"
	"github.com/ceyewan/genesis/lab/internal/oracle"
	"github.com/ceyewan/genesis/lab/internal/schedule"
	"github.com/ceyewan/genesis/lab/internal/store"
	"github.com/ceyewan/genesis/lab/internal/watch"
	"github.com/ceyewan/genesis/pkg/dlock"
)

const ms = int64(time.Millisecond)

// A story is evidence that is written by hand, in milliseconds.
type story struct{ oracle.Evidence }

func newStory() *story {
	return &story{oracle.Evidence{Topology: schedule.Single, Mode: schedule.Inside, TTL: 2 * time.Second, From: ms, To: 20_000 * ms}}
}

func (s *story) add(at int64, kind event.Kind, worker string, fence int64, note string) {
	s.Events = append(s.Events, event.Event{At: at * ms, Kind: kind, Worker: worker, Key: "slow-0", Attempt: worker + "/1", Fence: fence, Note: note, PID: int(worker[0]), Dur: patience(kind)})
	slices.SortStableFunc(s.Events, func(a, b event.Event) int { return int(a.At - b.At) })
}

// patience is that of all calls.
func patience(kind event.Kind) int64 {
	if kind == event.Call {
		return 6000 * ms
	}
	return 0
}

// hold is an attempt in good order.
func (s *story) hold(worker string, call, enter, exit, released, fence int64) {
	s.add(call, event.Call, worker, 0, "")
	s.add(enter, event.Enter, worker, fence, "")
	s.add(exit, event.Exit, worker, fence, event.Done)
	s.add(released, event.Released, worker, 0, "")
	s.releasing(worker, released-exit)
}

// releasing is how long the release of a worker took.
func (s *story) releasing(worker string, took int64) {
	for i := range s.Events {
		if s.Events[i].Worker == worker && s.Events[i].Kind == event.Released {
			s.Events[i].Dur = took * ms
		}
	}
}

func (s *story) expect(t *testing.T, oracles ...string) *oracle.Verdict {
	t.Helper()
	v := s.Judge(0)
	var got []string
	for _, x := range v.Violations {
		if !slices.Contains(got, x.Oracle) {
			got = append(got, x.Oracle)
		}
	}
	slices.Sort(got)
	slices.Sort(oracles)
	if fmt.Sprint(got) != fmt.Sprint(oracles) {
		t.Errorf("caught by %v, want %v: %+v", got, oracles, v.Violations)
	}
	return v
}

func TestAQuietStoryPasses(t *testing.T) {
	s := newStory()
	s.hold("a", 10, 20, 30, 40, 1)
	s.hold("b", 15, 41, 50, 60, 2)
	if v := s.expect(t); !v.Passed() || v.Sections != 2 || v.Checked != 4 {
		t.Errorf("%+v", v)
	}
}

func TestTwoInsideTogether(t *testing.T) {
	s := newStory()
	s.hold("a", 10, 20, 30, 40, 1)
	s.hold("b", 15, 29, 50, 60, 2)
	s.expect(t, "overlap", "history")
	s.Mode = schedule.Beyond
	if v := s.expect(t); v.Overlaps != 1 {
		t.Errorf("beyond the assumptions overlaps are counted: %+v", v)
	}
}

// A stall of the machine excuses an overlap; one that the lab made does not.
func TestAStallExcuses(t *testing.T) {
	s := newStory()
	s.hold("a", 10, 20, 300, 310, 1)
	s.hold("b", 15, 290, 320, 330, 2)
	s.Events = append(s.Events, event.Event{At: 298 * ms, Kind: event.Stall, Worker: "a", Dur: 150 * ms})
	if v := s.expect(t, "overlap", "history"); !v.Stalled() {
		t.Errorf("not excused: %+v", v.Violations)
	}
	s.Faults = []oracle.Struck{{Fault: schedule.Fault{Kind: schedule.WorkerPause}, From: 140 * ms, To: 298 * ms, Worker: "a"}}
	if v := s.expect(t, "overlap", "history"); v.Stalled() {
		t.Error("a pause that the lab made excuses nothing")
	}
}

func TestTokensThatGoBack(t *testing.T) {
	s := newStory()
	s.hold("a", 10, 20, 30, 40, 5)
	s.hold("b", 41, 45, 50, 60, 4)
	s.expect(t, "fence", "history")
	s.Mode = schedule.Beyond
	s.expect(t, "fence", "history")
}

// Beyond the assumptions two servers may have granted the lock, and the one that was first
// may learn of it last.
func TestTwoGrantsBeyondTheAssumptions(t *testing.T) {
	s := newStory()
	s.Mode = schedule.Beyond
	s.hold("a", 10, 100, 120, 130, 5)
	s.hold("b", 20, 60, 70, 80, 6)
	s.expect(t)
}

func TestAStaleWrite(t *testing.T) {
	s := newStory()
	s.Mode = schedule.Beyond
	s.hold("a", 10, 20, 100, 110, 5)
	s.hold("b", 41, 45, 50, 60, 5)
	s.Writes = []store.Write{{At: 48 * ms, Key: "slow-0", Attempt: "b/1", Fence: 5}, {At: 90 * ms, Key: "slow-0", Attempt: "a/1", Fence: 5}}
	s.expect(t, "fence", "history", "stale-write")
}

func TestALossThatComesLate(t *testing.T) {
	s := newStory()
	s.add(10, event.Call, "a", 0, "")
	s.add(20, event.Enter, "a", 1, "")
	s.add(2100, event.Exit, "a", 1, event.Lost)
	s.add(2110, event.Released, "a", 0, "ownership of the lock was lost")
	s.Faults = []oracle.Struck{{Fault: schedule.Fault{Kind: schedule.BlackHole}, From: 30 * ms, To: 3000 * ms}}
	s.Deaths = []watch.Death{{At: 2050 * ms, Key: "slow-0", Fence: 1, Cause: "expired"}}
	s.expect(t, "late-loss")
	s.Deaths[0].At = 2101 * ms
	if v := s.expect(t); v.LossesTimed != 1 {
		t.Errorf("%+v", v)
	}
	s.Faults = nil
	s.expect(t, "false-loss")
}

func TestUnservedWaiter(t *testing.T) {
	s := newStory()
	s.hold("a", 10, 20, 30, 40, 1)
	s.add(25, event.Call, "b", 0, "")
	s.add(6000, event.Failed, "b", 0, "context deadline exceeded")
	s.expect(t, "idle")
	s.Faults = []oracle.Struck{{Fault: schedule.Fault{Kind: schedule.BlackHole}, From: 1000 * ms, To: 2500 * ms}}
	s.expect(t)
}

// A waiter that was never answered may have been granted the lock, and may have lost
// it since: that explains nothing that another was granted.
func TestAnUnknownAcquireExplainsNothing(t *testing.T) {
	s := newStory()
	s.add(5, event.Call, "c", 0, "")
	s.add(8, event.Failed, "c", 0, "outcome is unknown")
	s.hold("a", 10, 20, 30, 40, 1)
	s.hold("b", 35, 41, 50, 60, 2)
	s.expect(t)
	s.hold("d", 45, 49, 51, 60, 3)
	s.expect(t, "overlap", "history")
}

func TestRecoveryAfterAKill(t *testing.T) {
	s := newStory()
	s.add(10, event.Call, "a", 0, "")
	s.add(20, event.Enter, "a", 1, "")
	s.Faults = []oracle.Struck{{Fault: schedule.Fault{Kind: schedule.WorkerKill}, From: 500 * ms, To: 510 * ms, Worker: "a"}}
	s.hold("b", 30, 2100, 2200, 2210, 2)
	if v := s.expect(t); len(v.Recoveries) != 1 || v.Recoveries[0] != 1600*time.Millisecond {
		t.Errorf("%+v", v)
	}
}

func TestGhostsAndIdleness(t *testing.T) {
	s := newStory()
	s.Ghosts = []oracle.Ghost{{Key: "quick-0-1", PID: 7, Phase: "held", Left: time.Second}}
	s.expect(t, "ghost")
	s.Ghosts = nil
	if v := s.Judge(1); len(v.Violations) != 1 || v.Violations[0].Oracle != "rate" {
		t.Errorf("a trial without sections passes: %+v", v.Violations)
	}
}

// Attempts without an answer do not keep a history from being judged, however many they are.
func TestUnansweredAttemptsCostNothing(t *testing.T) {
	s := newStory()
	for i := range 60 {
		worker := string(rune('A' + i))
		s.add(10, event.Call, worker, 0, "")
		s.add(11, event.Failed, worker, 0, dlock.ErrUnknownOutcome.Error())
	}
	s.hold("y", 20, 30, 40, 50, 2)
	s.hold("z", 60, 70, 80, 90, 1)
	for _, v := range s.expect(t, "fence", "history").Violations {
		if v.Oracle == "history" && !strings.Contains(v.Detail, "not those of a lock") {
			t.Errorf("the history was not judged: %s", v.Detail)
		}
	}
}
