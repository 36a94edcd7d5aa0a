package testenv

import "time"

// Stall records that the machine did not run the test until then.
func Stall(m *Metronome, at time.Time, late time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.beats = append(m.beats, beat{at, late})
}
