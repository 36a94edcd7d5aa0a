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

// keepCause stores the error of an attempt. If our own timeout ends a later attempt, this error
// says more than the timeout. A lack of room is no cause: a later attempt had room, or ends with the same error.
func (a *acquisition) keepCause(err error) {
	if !errors.Is(err, sharedtimeout.ErrAttemptTimeout) && !hadNoRoom(err) {
		a.cause = hideContextErrors(err)
	}
}

// preferCause returns the error of an earlier attempt if err only says that time is up: the end of a context, or
// the deadline of a connection, which a client sets to the same time.
func (a *acquisition) preferCause(err error) error {
	switch {
	case errors.Is(err, errPlaceLost): // the key was held when the claim was queued, but may be free now
		return hide.From(err, ErrLockHeldByOther)
	case a.cause == nil || !isContextError(err) && !isTimeout(err):
		return err
	}
	return a.cause
}

// errPlaceLost: the backend dropped a waiting claim, for instance because this
// process was stopped for longer than a heartbeat.
var errPlaceLost = fmt.Errorf("%w: the place in the queue was lost", ErrLockHeldByOther)

// placeLost returns the error of a call that has lost its place in the queue. If no attempt to
// queue was answered, it is unknown whether the key is held.
func (a *acquisition) placeLost(err error) error {
	if !a.earlierUnknown || a.queued {
		return err
	}
	why := a.cause
	if why == nil {
		why = hide.From(err, ErrLockHeldByOther)
	}
	return fmt.Errorf("%w: %w", ErrUnknownOutcome, mayBeStored(why))
}

// timeoutError returns the error of an attempt that our own timeout ended, not the caller's
// context. It prefers the cause of an earlier failure.
func (a *acquisition) timeoutError(err error, timeout time.Duration) error {
	class := driver.ClassOf(err)
	switch {
	case class != driver.Ambiguous && a.cause == nil && isContextError(err) && !errors.Is(err, ErrUnavailable) && !errors.Is(err, ErrNotReady):
		return driver.Classify(fmt.Errorf("%w: nothing was sent within %v", ErrUnavailable, timeout), class)
	case class != driver.Ambiguous:
		return driver.Classify(a.preferCause(err), class)
	case a.cause == nil:
		return fmt.Errorf("no answer within %v", timeout)
	}
	return driver.Classify(fmt.Errorf("no answer within %v, and before that: %w", timeout, mayBeStored(a.cause)), class)
}

// hideContextErrors hides context errors that do not come from the caller's context, so that
// errors.Is finds one only if the caller's context ended.
func hideContextErrors(err error) error {
	return hide.From(err, context.DeadlineExceeded, context.Canceled)
}

// callError returns the error of a call to the backend. It keeps a context error only if the
// caller's context ended.
func (c *Client) callError(ctx context.Context, err error) error {
	switch {
	case err == nil:
		return nil
	case contextEnded(ctx): // the client may notice the deadline before ctx does
		return timedOut(ctx, err)
	case isContextError(err) && c.closing.Err() != nil:
		return ErrClosed
	}
	return hideContextErrors(err)
}

// timedOut returns the error of a call whose context has ended. A client may set the deadline of the context on its
// connection: the time-out of that is the end of the context.
func timedOut(ctx context.Context, err error) error {
	if isContextError(err) || !isTimeout(err) {
		return err
	}
	if ended := ctx.Err(); ended != nil {
		return fmt.Errorf("%w: %w", ended, err)
	}
	return fmt.Errorf("%w: %w", context.DeadlineExceeded, err)
}

// mayBeStored hides ErrUnavailable in the cause of an ErrUnknownOutcome: an earlier attempt
// may have reached the backend even if the last one did not.
func mayBeStored(err error) error { return hide.From(err, ErrUnavailable) }

func isContextError(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)
}

func isTimeout(err error) bool {
	var timeout interface{ Timeout() bool }
	return errors.As(err, &timeout) && timeout.Timeout()
}
