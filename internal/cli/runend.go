package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock"
)

// linger keeps the lock for as long as --min-hold asks: by its lease, after this process has ended,
// or else by waiting. A signal ends the wait.
func (r *run) linger(signals <-chan os.Signal) {
	left := time.Until(r.taken.Add(r.minHold))
	valid := r.guard.Remaining()
	validUntil := time.Now().Add(valid)
	if left <= 0 || valid <= 0 || r.leave(left) {
		return
	}
	t := time.NewTimer(left)
	defer t.Stop()
	for {
		select {
		case <-t.C:
			return
		case <-r.guard.Done():
			r.ranOut = !time.Now().Before(validUntil) // sooner, it was taken away, maybe while the command ran
			return
		case s := <-signals:
			if r.heeds(s) {
				return
			}
			stopFor(s)
		}
	}
}

// leave leaves the lock to its lease, which it makes as long as is asked for. It reports whether it
// could: a file has no lease.
func (r *run) leave(left time.Duration) bool {
	if r.guard.Remaining() >= endless {
		return false
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.cmd.Context()), r.ttl/3)
	defer cancel()
	return r.guard.Extend(ctx, left) == nil
}

// finish releases the lock.
func (r *run) finish(code int) error {
	return r.conclude(code, r.guard.Unlock(context.WithoutCancel(r.cmd.Context())))
}

// conclude reports how the lock ended. A lock that was lost meanwhile is reported, since
// another process may have done the same work.
func (r *run) conclude(code int, err error) error {
	lost := errors.Is(err, dlock.ErrOwnershipLost)
	r.isLost = r.isLost || (lost && !r.ranOut)
	switch {
	case lost && r.ranOut:
		r.reporter.event(event{What: "cut-short", Error: err.Error()})
	case lost && r.onLost == "kill":
		if r.asJSON { // people read the error
			r.reporter.event(event{What: "lost", Error: err.Error()})
		}
		return &exit{ExitLost, fmt.Errorf("the lock was lost before the command ended: %w", err)}
	case lost && r.toldLoss:
	case lost:
		r.reporter.event(event{What: "lost", Error: err.Error()})
	case err != nil:
		r.unconfirmed(err)
	}
	if code != 0 {
		return &exit{code, nil}
	}
	return nil
}

// endSession ends the session, and the lock with it if it is still there.
func (r *run) endSession() {
	if err := r.close(); err != nil && r.guard != nil {
		r.unconfirmed(err)
	}
	if r.guardianGone != nil {
		r.guardianGone()
	}
}

// unconfirmed reports once that the lock may not be released.
func (r *run) unconfirmed(err error) {
	if !r.toldUnconfirmed {
		r.toldUnconfirmed = true
		r.reporter.event(event{What: "unconfirmed", Error: oneLine(err)})
	}
}
