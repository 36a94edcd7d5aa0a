// Package metronome measures for how long a machine did not run a test, and tells a test how strict it is to be.
package metronome

import (
	"context"
	"os"
	"sync"
	"testing"
	"time"
)

// A Metronome measures for how long this machine did not run the test: a delay up to that time is
// not the fault of the code under test.
type Metronome struct {
	mu    sync.Mutex
	last  time.Time
	beats []beat
}

// StressEnv is set where tests run their full counts and check every limit of real time.
const StressEnv = "DLOCK_STRESS"

// UnderStress returns full if DLOCK_STRESS is set, and usual otherwise. The values are counts, or
// limits of real time. A strict limit is meaningful only on an idle machine, so the usual one
// separates right from wrong even on a machine ten times slower.
func UnderStress[T any](usual, full T) T {
	if os.Getenv(StressEnv) != "" {
		return full
	}
	return usual
}

const (
	interval  = 5 * time.Millisecond
	tolerated = 2 * interval // a beat that is later than that is a stall
)

type beat struct {
	at   time.Time
	late time.Duration
}

// running is the metronome of all tests that run at a time, and how many excuses each has needed: for stalls, and for calls that
// were late without one.
var running struct {
	mu      sync.Mutex
	tests   map[testing.TB]int
	late    map[testing.TB]int
	beating *Metronome
	end     func()
}

// Start returns a metronome that beats until the test ends, at least. Tests that run at the same time share it.
func Start(tb testing.TB) *Metronome {
	tb.Helper()
	running.mu.Lock()
	defer running.mu.Unlock()
	if _, known := running.tests[tb]; known {
		return running.beating
	}
	if len(running.tests) == 0 {
		running.tests, running.late = map[testing.TB]int{}, map[testing.TB]int{}
		running.beating, running.end = New()
	}
	running.tests[tb] = 0
	tb.Cleanup(func() {
		running.mu.Lock()
		defer running.mu.Unlock()
		delete(running.tests, tb)
		delete(running.late, tb)
		if len(running.tests) == 0 {
			running.end()
		}
	})
	return running.beating
}

// New returns a metronome that beats until end is called.
func New() (m *Metronome, end func()) {
	m = &Metronome{last: time.Now()}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { m.run(ctx) })
	return m, func() {
		cancel()
		wg.Wait()
	}
}

// Stalled reports whether a call that began then took longer than a limit on account of the machine, which did not run us for
// a quarter of the time, and servers no more often. Under stress nothing is excused.
func (m *Metronome) Stalled(began time.Time, limit time.Duration) bool {
	took := time.Since(began)
	return took > UnderStress(limit, time.Hour) && m.Lost(began) > took/4
}

// maxExcuses is how many calls of a test a machine may delay.
const maxExcuses = 5

// Stalled is Metronome.Stalled for a test that has started one, or a server, before. No test is excused often.
func Stalled(tb testing.TB, began time.Time, limit time.Duration) bool {
	tb.Helper()
	if !Start(tb).Stalled(began, limit) {
		return false
	}
	running.mu.Lock()
	defer running.mu.Unlock()
	if _, runs := running.tests[tb]; !runs {
		return false
	}
	running.tests[tb]++
	return running.tests[tb] <= maxExcuses
}

// maxLate is how many calls of a test may be late for no reason that was measured: it may be a server that did not run.
const maxLate = 2

// Late reports whether a call took longer than a limit, so that it may be made again: Stalled, or one of few of a test that has
// started a metronome, or a server, before.
func Late(tb testing.TB, began time.Time, limit time.Duration) bool {
	tb.Helper()
	if time.Since(began) <= UnderStress(limit, time.Hour) {
		return false
	}
	if Stalled(tb, began, limit) {
		return true
	}
	running.mu.Lock()
	defer running.mu.Unlock()
	if _, runs := running.tests[tb]; !runs {
		return false
	}
	running.late[tb]++
	return running.late[tb] <= maxLate
}

func (m *Metronome) run(ctx context.Context) {
	for ctx.Err() == nil {
		<-time.After(interval)
		m.mu.Lock()
		m.beat()
		m.mu.Unlock()
	}
}

// beat records the time since the last beat if it was too long. Who asks does so as well, because a stall may still be under
// way for the metronome. The caller holds mu.
func (m *Metronome) beat() {
	now := time.Now()
	if late := now.Sub(m.last) - interval; late > tolerated {
		m.beats = append(m.beats, beat{now, late})
	}
	m.last = now
}

// Lost returns how much time the machine has taken from the test since then.
func (m *Metronome) Lost(since time.Time) time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.beat()
	return m.lost(since, m.last)
}

// LostBetween returns how much time the machine took from the test in stalls that ended between two
// times.
func (m *Metronome) LostBetween(from, to time.Time) (sum time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.beat()
	return m.lost(from, to)
}

func (m *Metronome) lost(from, to time.Time) (sum time.Duration) {
	for i := len(m.beats) - 1; i >= 0 && m.beats[i].at.After(from); i-- {
		if b := m.beats[i]; !b.at.After(to) {
			sum += min(b.late, b.at.Sub(from)) // it may have begun before
		}
	}
	return sum
}

// Longest returns the longest stall that ended since then.
func (m *Metronome) Longest(since time.Time) (longest time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.beat()
	for i := len(m.beats) - 1; i >= 0 && m.beats[i].at.After(since); i-- {
		longest = max(longest, m.beats[i].late)
	}
	return longest
}

// MayMiss reports whether stalls since then may have kept the test from something that is due once within a time, by as much as
// it has to spare: one stall of that length, or many short ones within that time. These delay each step of a call, and do so if
// together they take twice what there is to spare, or half of the time. Under stress nothing is excused.
func (m *Metronome) MayMiss(since time.Time, within, spare time.Duration) bool {
	if os.Getenv(StressEnv) != "" {
		return false
	}
	return m.Longest(since) >= spare || m.mostLost(since, within) >= min(2*spare, within/2)
}

// mostLost returns how much time the machine has taken from the test, since then, within any time of this length.
func (m *Metronome) mostLost(since time.Time, within time.Duration) (most time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.beat()
	for i := len(m.beats) - 1; i >= 0 && m.beats[i].at.After(since); i-- {
		end := m.beats[i].at
		from := end.Add(-within)
		if from.Before(since) {
			from = since
		}
		most = max(most, m.lost(from, end))
	}
	return most
}
