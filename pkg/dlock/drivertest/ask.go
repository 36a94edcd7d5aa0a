package drivertest

import (
	"fmt"
	"sync/atomic"
	"time"

	"github.com/ceyewan/genesis/internal/metronome"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// A tally counts calls of ask: all, those that had to be repeated, and those of which an attempt failed with an error of
// class Transient.
type tally struct{ calls, repeated, transient atomic.Int64 }

// ask makes a call and repeats it, as the engine does, unless the error is Fatal: on a busy machine a
// server may be late, or elect a leader. In virtual time no call is late. It reports whether a call
// before the last one may have been carried out.
func (s *suite) ask(call func() error) (again bool, err error) {
	s.asked.calls.Add(1)
	isTransient := false
	for pause := time.Millisecond; ; pause *= 2 {
		err = call()
		if err == nil || s.virtual || driver.ClassOf(err) == driver.Fatal || pause > time.Second {
			return again, err
		}
		if pause == time.Millisecond {
			s.asked.repeated.Add(1)
		}
		switch driver.ClassOf(err) {
		case driver.Ambiguous:
			again = true
		case driver.Transient:
			if !isTransient {
				s.asked.transient.Add(1)
			}
			isTransient = true
		case driver.Fatal:
		}
		elapse(pause)
	}
}

// askOnce makes a call that the engine does not repeat. It is repeated only if the machine stalled while it was made, or, rarely,
// if a server alone may have: the call was late. It reports whether a call before the last one may have been carried out.
func (s *suite) askOnce(call func() error) (again bool, err error) {
	s.Helper()
	for {
		began := time.Now()
		err = call()
		if err == nil || driver.ClassOf(err) == driver.Fatal {
			return again, err
		}
		if !s.stalled(began) && !s.excusesLate(began) {
			return again, err
		}
		again = again || driver.ClassOf(err) == driver.Ambiguous
	}
}

// excusesLate reports whether a call that began then was late, and that is excused: once in a case, and maxLate times in a run.
// No stall was measured, so a backend that is late itself must not be excused in each case.
func (s *suite) excusesLate(began time.Time) bool {
	s.Helper()
	took := time.Since(began)
	if s.virtual || took <= metronome.UnderStress(oneAttempt, time.Hour) || s.wasLate.Swap(true) {
		return false
	}
	late := s.late.Add(1)
	s.Logf("late call %d of this run, after %v", late, took)
	return late <= maxLate
}

// maxLate is how many late calls of a run are excused without a measured stall.
const maxLate = 2

// stalled reports whether the machine, and not the backend, made a call late that began then. In virtual time no call is late.
func (s *suite) stalled(began time.Time) bool {
	s.Helper()
	return !s.virtual && metronome.Stalled(s.T, began, oneAttempt)
}

// oneAttempt is less than a call waits for its answer on any backend.
const oneAttempt = 500 * time.Millisecond

// judgeCalls fails a backend that does not answer calls that it could answer.
func (s *suite) judgeCalls() {
	calls, repeated, transient := s.asked.calls.Load(), s.asked.repeated.Load(), s.asked.transient.Load()
	if err := judge(calls, repeated, transient); err != nil {
		s.Error(err)
	} else if repeated > 0 {
		s.Logf("%d of %d calls were repeated", repeated, calls)
	}
}

// judge returns an error if more calls were repeated than a busy machine explains. A call that was late is rare, and its
// outcome is unknown. An error that says that nothing was done, and that a retry may succeed, is for what the backend
// cannot wait for: an election of the servers meets each of a few goroutines. A retry that the backend could make, as for
// a script that a server does not know, is not left to the caller.
func judge(calls, repeated, transient int64) error {
	switch {
	case transient > maxRepeated:
		return fmt.Errorf("%d of %d calls had to be tried again: the backend leaves its own retries to the caller", transient, calls)
	case repeated > calls/10+maxRepeated:
		return fmt.Errorf("%d of %d calls had to be repeated: the backend fails calls that it could answer", repeated, calls)
	}
	return nil
}

// maxRepeated is how many calls of a case may be repeated, however few there are.
const maxRepeated = 20
