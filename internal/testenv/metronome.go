package testenv

import (
	"context"
	"sync"
	"testing"
	"time"
)

// A Metronome measures for how long this machine did not run the test: a delay up to that time is
// not the fault of the code under test.
type Metronome struct {
	mu    sync.Mutex
	beats []beat
}

type beat struct {
	at   time.Time
	late time.Duration
}

// StartMetronome returns a metronome that ends with the test.
func StartMetronome(tb testing.TB) *Metronome {
	tb.Helper()
	m := &Metronome{}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { m.run(ctx) })
	tb.Cleanup(func() {
		cancel()
		wg.Wait()
	})
	return m
}

func (m *Metronome) run(ctx context.Context) {
	const every = 5 * time.Millisecond
	for last := time.Now(); ctx.Err() == nil; {
		<-time.After(every)
		now := time.Now()
		if late := now.Sub(last) - every; late > 2*every {
			m.mu.Lock()
			m.beats = append(m.beats, beat{now, late})
			m.mu.Unlock()
		}
		last = now
	}
}

// Lost returns how much time the machine has taken from the test since then.
func (m *Metronome) Lost(since time.Time) time.Duration {
	return m.LostBetween(since, time.Now())
}

// LostBetween returns how much time the machine took from the test in stalls that ended between two
// times.
func (m *Metronome) LostBetween(from, to time.Time) (sum time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for i := len(m.beats) - 1; i >= 0 && m.beats[i].at.After(from); i-- {
		if !m.beats[i].at.After(to) {
			sum += m.beats[i].late
		}
	}
	return sum
}
