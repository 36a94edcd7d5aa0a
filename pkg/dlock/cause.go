package dlock

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/internal/hide"
	"github.com/ceyewan/genesis/pkg/dlock/internal/sharedtimeout"
)

// record keeps the error of an attempt. If our own timeout ends a later attempt, this error
// says more than the timeout.
func (a *acquisition) record(err error) {
	if !errors.Is(err, sharedtimeout.ErrAttemptTimeout) {
		a.cause = notCallers(err)
	}
}

// better returns the last error that had a cause if err is only the end of a context.
func (a *acquisition) better(err error) error {
	switch {
	case errors.Is(err, errPlaceLost): // the key was held when the claim was queued, but may be free now
		return hide.From(err, ErrLockHeldByOther)
	case a.cause == nil || !isContextError(err):
		return err
	}
	return a.cause
}

// errPlaceLost: the backend dropped a waiting claim, for instance because this
// process was stopped for longer than a heartbeat.
var errPlaceLost = fmt.Errorf("%w: the place in the queue was lost", ErrLockHeldByOther)

// placeLost returns the error of a call that has lost its place in the queue. If no attempt to
// get that place was answered, it is unknown whether the key is held.
func (a *acquisition) placeLost(err error) error {
	if !a.doubt || a.queued {
		return err
	}
	why := a.cause
	if why == nil {
		why = hide.From(err, ErrLockHeldByOther)
	}
	return fmt.Errorf("%w: %w", ErrUnknownOutcome, mayBeStored(why))
}

// cutShort returns the error of an attempt that was ended by our own timeout, not by the
// caller's. It prefers the cause of an earlier failure.
func (a *acquisition) cutShort(err error, timeout time.Duration) error {
	class := driver.ClassOf(err)
	switch {
	case class != driver.Ambiguous && a.cause == nil && isContextError(err) && !errors.Is(err, ErrUnavailable):
		return driver.Classify(fmt.Errorf("%w: nothing was sent within %v", ErrUnavailable, timeout), class)
	case class != driver.Ambiguous:
		return driver.Classify(a.better(err), class)
	case a.cause == nil:
		return fmt.Errorf("no answer within %v", timeout)
	}
	return driver.Classify(fmt.Errorf("no answer within %v, and before that: %w", timeout, mayBeStored(a.cause)), class)
}

// notCallers hides a timeout or a cancellation that is not the caller's, so that errors.Is
// finds a context's error only if the caller's context ended.
func notCallers(err error) error {
	return hide.From(err, context.DeadlineExceeded, context.Canceled)
}

// ownError returns the error of a call. A context's error remains in it only if the caller's
// context ended.
func (c *Client) ownError(ctx context.Context, err error) error {
	switch {
	case err == nil || isOver(ctx): // the client may notice the deadline before ctx does
		return err
	case isContextError(err) && c.closing.Err() != nil:
		return ErrClosed
	}
	return notCallers(err)
}

// mayBeStored hides ErrUnavailable in the cause of an ErrUnknownOutcome: an earlier attempt
// may have reached the backend even if the last one did not.
func mayBeStored(err error) error { return hide.From(err, ErrUnavailable) }

func isContextError(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)
}
