package drivertest

import (
	"testing"
	"time"

	"github.com/ceyewan/genesis/internal/metronome"
)

// A few calls may fail, and a tenth of many. An error that is only passed on is not excused by many calls.
func TestJudgeOfRepeatedCalls(t *testing.T) {
	for _, tc := range []struct {
		calls, repeated, transient int64
		ok                         bool
	}{
		{calls: 0, ok: true},
		{calls: 30, repeated: 20, transient: 20, ok: true}, // an election
		{calls: 25, repeated: 25},                          // each first attempt
		{calls: 25, repeated: 25, transient: 25},
		{calls: 300, repeated: 50, ok: true}, // a busy machine
		{calls: 300, repeated: 51},
		{calls: 1000, repeated: 500}, // every second call
		{calls: 1000, repeated: 20, transient: 20, ok: true},
		{calls: 1000, repeated: 21, transient: 21},
	} {
		if err := judge(tc.calls, tc.repeated, tc.transient); (err == nil) != tc.ok {
			t.Errorf("%+v: %v", tc, err)
		}
	}
}

// A late call is excused once in a case and twice in a run, and never in virtual time.
func TestFewLateCallsAreExcused(t *testing.T) {
	late := time.Now().Add(-metronome.UnderStress(2*oneAttempt, 2*time.Hour))
	c := config{}
	for i, want := range []bool{true, true, false} {
		s := suite{T: t, config: &c}
		if s.excusesLate(time.Now()) {
			t.Error("a call is excused that was not late")
		}
		if got := s.excusesLate(late); got != want {
			t.Errorf("case %d: excused %v, want %v", i, got, want)
		}
		if s.excusesLate(late) {
			t.Errorf("case %d: a second late call is excused", i)
		}
	}
	s := suite{T: t, config: &config{virtual: true}}
	if s.excusesLate(late) {
		t.Error("a late call is excused in virtual time")
	}
}
