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
