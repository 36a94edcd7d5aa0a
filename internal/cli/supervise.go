package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/filelock"
)

// A supervisor sees to it that the command does not outlive the lock.
type supervisor struct {
	*run
	child *child

	guarded   bool // the command has a guardian
	guardian  *guardian
	called    time.Time       // when the guardian was started, or could not be
	unguarded <-chan struct{} // closed when the guardian has ended

	validUntil time.Time // when the command must have ended if nothing is renewed; zero: never
	killAt     time.Time // zero: nothing is wrong
	killed     bool
	unkilled   error // why it could not be killed
	why        error // why the command is being ended
	unrenewed  error // why the last renewal failed; nil after one that did not
}

// supervise runs the command until it has ended, and returns its exit code.
func (r *run) supervise(signals <-chan os.Signal) (int, error) {
	s := &supervisor{run: r}
	heedStops(r.signals) // before there is a command that would run on without us
	if err := s.start(); err != nil {
		return 0, err
	}
	defer func() { r.guardianGone = s.guardian.dismiss() }()
	over := s.longest()
	lost := r.guard.Done()
	timer := time.NewTimer(s.look())
	defer timer.Stop()
	for {
		select {
		case code := <-s.child.ended:
			s.endOthers()
			s.child.leaveOthers()
			s.child.takeTerminal()
			return s.result(code)
		case sig := <-signals:
			s.heeds(sig)
			s.child.signal(sig)
			continue
		case <-lost:
			lost = nil
			s.lost()
		case <-over:
			s.end(fmt.Errorf("the command ran longer than --max-hold %v", r.maxHold), time.Now().Add(r.grace))
		case err := <-r.unrenewed:
			s.renewalFailed(err)
		case <-s.unguarded:
			s.unguarded = nil // look starts another one
		case by := <-s.child.stopped:
			s.child.suspend(by)
			continue // a lock that was lost meanwhile is found by the timer
		case <-timer.C:
		}
		timer.Reset(s.look())
	}
}

// start starts the command unless the lock is lost already: with the lock's own descriptors if it is a file, so that
// the lock is held for as long as the command runs, whatever becomes of us; and with
// a guardian if it has a lease, so that the command ends with us. Where a lock cannot be inherited,
// the command always ends with us.
func (s *supervisor) start() (err error) {
	s.remaining() // for validUntil: we may be stopped until the first look
	if err := s.guard.Err(); err != nil {
		return exitWith(ExitLost, "the lock was lost before the command was started: %w", err)
	}
	var files []*os.File
	store, isFile := s.Opener.(*filelock.Store)
	if isFile {
		files, err = store.Descriptors(s.guard.Key(), s.guard.Token())
		if err != nil && !errors.Is(err, dlock.ErrUnsupported) {
			return &exit{ExitBackend, err}
		}
	}
	s.child, err = startChild(s.run, files, !isFile)
	for _, f := range files {
		_ = f.Close()
	}
	if err != nil {
		return exitWith(ExitCannotRun, "%s: %w", s.args[0], err)
	}
	s.guarded = !isFile && s.onLost == "kill"
	return nil
}

// guardianPause is how long after one guardian the next is started at the earliest.
const guardianPause = time.Second

// keepGuardian starts a guardian, and another one if that has ended. Without one we go on, and try again: it is there
// for the worst case only.
func (s *supervisor) keepGuardian() {
	if !s.guarded || s.guardian.alive() || time.Since(s.called) < guardianPause {
		return
	}
	news := s.called.IsZero() || s.guardian != nil
	s.called = time.Now()
	s.guardian.dismiss()
	g, err := callGuardian(s.child.pid, s.validUntil)
	switch {
	case err == nil:
		s.guardian, s.unguarded = g, g.whenEnded()
	case news:
		s.guardian = nil
		s.reporter.event(event{What: "unguarded", Error: err.Error()})
	}
}

// endOthers ends the children that a command has left which was to end: the lock must not pass on before they are gone.
// They have the same time as the command, and are killed then.
func (s *supervisor) endOthers() {
	switch {
	case s.killAt.IsZero():
		return
	case !s.killed && s.child.awaitOthers(s.killAt):
		return
	case !s.killed:
		s.unkilled = s.child.kill()
	}
	s.child.awaitOthers(time.Now().Add(othersTimeout))
}

// othersTimeout is how long the children of a killed command may take to end.
const othersTimeout = time.Second

// longest is when the command has run for as long as it may.
func (s *supervisor) longest() <-chan time.Time {
	if s.maxHold == 0 {
		return nil
	}
	return time.After(time.Until(s.taken.Add(s.maxHold)))
}

// reserve is how long before the lock could pass on the command is killed: a busy machine takes
// its time to kill.
func (r *run) reserve() time.Duration { return r.ttl / 20 }

// endless is more than any lease: what Remaining returns without one is longer still.
const endless = 1 << 62

// remaining is how long the command may run if nothing is renewed, and whether the lock has a lease that lasts.
// It updates validUntil.
func (s *supervisor) remaining() (left time.Duration, lease bool) {
	now := time.Now() // first: we may be stopped before the next line
	left = s.guard.Remaining()
	if left <= 0 || left >= endless {
		return left, false
	}
	left -= s.reserve()
	until := now.Add(left)
	if until.Sub(s.validUntil) > s.ttl/100 { // it was renewed
		s.unrenewed = nil
	}
	s.validUntil = until
	return left, true
}

// look does what is due, and returns when to look again.
func (s *supervisor) look() time.Duration {
	left, lease := s.remaining()
	now := time.Now()
	if lease {
		s.keepGuardian()
		s.guardian.expect(s.validUntil)
	}
	if lease && s.onLost == "kill" && left <= s.grace && s.killAt.IsZero() {
		s.isLost = true
		s.end(s.because("the lock could not be renewed"), s.validUntil)
	}
	switch {
	case !s.killAt.IsZero() && !s.killed && !now.Before(s.killAt):
		s.killed = true
		if s.unkilled = s.child.kill(); s.unkilled != nil {
			s.reporter.event(event{What: "not-killed", Error: s.unkilled.Error()})
		}
		return time.Hour
	case !s.killAt.IsZero() && !s.killed:
		return s.killAt.Sub(now)
	case lease && left > s.grace:
		next := min(left-s.grace, s.ttl/6)
		if s.guarded && !s.guardian.alive() {
			next = min(next, guardianPause) // to start another one
		}
		return next
	case lease: // nothing is left to do but to find out whether it is renewed
		return s.ttl / 6
	}
	return time.Hour
}

// renewalFailed reports the first of several renewals in a row that fail.
func (s *supervisor) renewalFailed(err error) {
	first := s.unrenewed == nil
	s.unrenewed = err
	if first {
		left := s.guard.Remaining()
		s.reporter.event(event{What: "renewal-failed", Error: err.Error(), Valid: left.Seconds()})
	}
}

// because adds to a text why renewals fail, if that is known.
func (s *supervisor) because(text string) error {
	if s.unrenewed == nil {
		return errors.New(text)
	}
	return fmt.Errorf("%s: %w", text, s.unrenewed)
}

// lost is for a lock that has ended. If its time had run out it may have passed on
// already, and the command is killed; else it was taken from us just now.
func (s *supervisor) lost() {
	s.isLost = true
	cause := context.Cause(s.guard.Context())
	if s.unrenewed != nil {
		cause = s.because(cause.Error())
	}
	if s.onLost == "warn" {
		s.toldLoss = true
		s.reporter.event(event{What: "lost", Error: cause.Error()})
		return
	}
	at := time.Now().Add(s.grace)
	if !s.killAt.IsZero() || (!s.validUntil.IsZero() && !time.Now().Before(s.validUntil)) {
		at = time.Now()
	}
	s.end(cause, at)
}

// end asks the command to end, and has it killed at a time, or before if that was
// said before.
func (s *supervisor) end(why error, killAt time.Time) {
	if s.killAt.IsZero() {
		s.why = why
		s.reporter.event(event{What: "ending", Error: why.Error()})
		if killAt.After(time.Now()) {
			s.child.askToEnd()
		}
		s.killAt = killAt
	}
	if killAt.Before(s.killAt) {
		s.killAt = killAt
	}
}

// result is what the command's end means.
func (s *supervisor) result(code int) (int, error) {
	s.commandCode = &code
	s.reporter.event(event{What: "ended", Code: &code})
	switch {
	case s.unkilled != nil:
		return 0, exitWith(ExitLost, "the command could not be killed (%w): %w", s.unkilled, s.why)
	case s.why != nil:
		return 0, exitWith(ExitLost, "the command was ended: %w", s.why)
	}
	return code, nil
}
