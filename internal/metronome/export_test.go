package metronome

import "time"

// Stall records that the machine did not run the test until then.
func Stall(m *Metronome, at time.Time, late time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.beats = append(m.beats, beat{at, late})
}

// StandStill returns a metronome that does not beat, and has not for some time.
func StandStill(d time.Duration) *Metronome { return &Metronome{last: time.Now().Add(-d)} }
