package oracle_test

import (
	"fmt"
	"testing"

	"github.com/ceyewan/genesis/lab/internal/event"
)

// wait is a call that is not served until its context ends, in milliseconds.
func (s *story) wait(worker string, from, to int64) {
	attempt := fmt.Sprint(worker, "/", len(s.Events))
	s.Events = append(s.Events,
		event.Event{At: from * ms, Kind: event.Call, Worker: worker, Key: "slow-0", Attempt: attempt, PID: int(worker[0]), Dur: (to - from) * ms},
		event.Event{At: to * ms, Kind: event.Failed, Worker: worker, Key: "slow-0", Attempt: attempt, PID: int(worker[0]), Note: "context deadline exceeded"})
}

// A waiter is not served for 8 s, for most of which the machine did not run it. Later another is not served for 8 s in which nothing
// is wrong: the excuse of the first time is none for the second.
func TestExcusedIdlenessHidesNoOther(t *testing.T) {
	for _, second := range []int64{5000, 20_000} { // while the first waits, and later
		s := newStory()
		s.To = 40_000 * ms
		s.wait("a", 1000, 9000)
		s.stall("a", 1500, 4900)
		s.stall("a", 8100, 8900)
		s.expectStalled(t, true, "idle")
		s.wait("b", second, second+8000)
		s.expectStalled(t, false, "idle")
	}
}

// The same for two times in which one call waited, before and after another was inside.
func TestAllIdleTimesOfOneCallAreJudged(t *testing.T) {
	s := newStory()
	s.wait("a", 1000, 18_000)
	s.hold("b", 9000, 9010, 9020, 9030, 1)
	s.stall("a", 1500, 6000)
	v := s.expect(t, "idle")
	if len(v.Violations) != 2 || v.Stalled() {
		t.Errorf("%+v", v.Violations)
	}
}

// Several that wait at the same time are one violation.
func TestWaitersOfOneIdleTime(t *testing.T) {
	s := newStory()
	for i, worker := range []string{"a", "b", "c"} {
		s.wait(worker, 1000+100*int64(i), 9000+100*int64(i))
	}
	if found := s.expect(t, "idle").Violations; len(found) != 1 || len(found[0].Workers) != 3 {
		t.Errorf("%+v", found)
	}
}
