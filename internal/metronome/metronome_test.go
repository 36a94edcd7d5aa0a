package metronome_test

import (
	"testing"
	"time"

	"github.com/ceyewan/genesis/internal/metronome"
)

// A call is excused only if it was late, and the machine took much of its time; and not often.
func TestStalled(t *testing.T) {
	t.Setenv(metronome.StressEnv, "")
	m := metronome.Start(t)
	if metronome.Start(t) != m {
		t.Error("a test has two metronomes")
	}
	began := time.Now()
	late := began.Add(-10 * time.Second)
	metronome.Stall(m, began.Add(-9*time.Second), time.Minute)
	if metronome.Stalled(t, late, time.Second) {
		t.Error("excused by a stall most of which was before the call")
	}
	metronome.Stall(m, began.Add(-time.Second), 5*time.Second)
	if metronome.Stalled(t, late, time.Hour) {
		t.Error("excused though not late")
	}
	if metronome.Stalled(t, began.Add(-500*time.Millisecond), 0) {
		t.Error("excused by a stall that was over")
	}
	if m.Longest(began.Add(-2*time.Second)) < 5*time.Second {
		t.Errorf("the longest stall is %v", m.Longest(late))
	}
	for i := range 6 {
		if got := metronome.Stalled(t, late, time.Second); got != (i < 5) {
			t.Errorf("excuse %d: %v", i+1, got)
		}
	}
	t.Setenv(metronome.StressEnv, "1")
	if m.Stalled(late, time.Second) {
		t.Error("excused under stress")
	}
}

// The test runs again after a stall, and the metronome does not yet.
func TestStallUnderWay(t *testing.T) {
	t.Setenv(metronome.StressEnv, "")
	began := time.Now().Add(-10 * time.Second)
	if !metronome.StandStill(9*time.Second).Stalled(began, time.Second) {
		t.Error("it does not excuse a call")
	}
	if longest := metronome.StandStill(9 * time.Second).Longest(began); longest < 8*time.Second {
		t.Errorf("it lasts %v", longest)
	}
}

// What repeats may be missed in one long stall, or in many short ones that are near each other.
func TestMayMiss(t *testing.T) {
	now := time.Now()
	for _, tc := range []struct {
		name           string
		stalls         int
		each, apart    time.Duration
		within, spare  time.Duration
		stress, misses bool
	}{
		{name: "no stall", within: 6 * time.Second, spare: time.Second},
		{name: "a long one", stalls: 1, each: time.Second, within: 6 * time.Second, spare: time.Second, misses: true},
		{name: "under stress", stalls: 1, each: time.Second, within: 6 * time.Second, spare: time.Second, stress: true},
		{name: "one that is too short", stalls: 1, each: 900 * time.Millisecond, within: 6 * time.Second, spare: time.Second},
		{name: "many short ones", stalls: 5, each: 400 * time.Millisecond, apart: time.Second, within: 6 * time.Second, spare: time.Second, misses: true},
		{name: "too few", stalls: 4, each: 400 * time.Millisecond, apart: time.Second, within: 6 * time.Second, spare: time.Second},
		{name: "far apart", stalls: 9, each: 400 * time.Millisecond, apart: 2 * time.Second, within: 6 * time.Second, spare: time.Second},
		{name: "half of the time", stalls: 8, each: 500 * time.Millisecond, apart: time.Second, within: 6 * time.Second, spare: 3 * time.Second, misses: true},
		{name: "a third of the time", stalls: 8, each: 333 * time.Millisecond, apart: time.Second, within: 6 * time.Second, spare: 3 * time.Second},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Setenv(metronome.StressEnv, map[bool]string{true: "1"}[tc.stress])
			m := metronome.StandStill(0)
			for i := range tc.stalls {
				metronome.Stall(m, now.Add(time.Duration(i-tc.stalls)*tc.apart), tc.each)
			}
			since := now.Add(-time.Minute)
			if got := m.MayMiss(since, tc.within, tc.spare); got != tc.misses {
				t.Errorf("got %v", got)
			}
			if m.MayMiss(now, tc.within, tc.spare) {
				t.Error("by stalls that were over")
			}
		})
	}
}

// Few calls may be late without a stall, and none that is not late.
func TestLate(t *testing.T) {
	t.Setenv(metronome.StressEnv, "")
	m, began := metronome.Start(t), time.Now()
	if metronome.Late(t, began, time.Hour) {
		t.Error("excused though not late")
	}
	late := began.Add(-10 * time.Second)
	for i := range 3 {
		if got := metronome.Late(t, late, time.Second); got != (i < 2) {
			t.Errorf("call %d: %v", i+1, got)
		}
	}
	metronome.Stall(m, began, 5*time.Second)
	if !metronome.Late(t, late, time.Second) {
		t.Error("a stall excuses no more")
	}
	t.Setenv(metronome.StressEnv, "1")
	if metronome.Late(t, late, time.Second) {
		t.Error("excused under stress")
	}
}
