package dlock

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/internal/hide"
)

// record keeps why an attempt failed, for the error of a later one that our own timeout
// ends and that says less.
func (a *acquisition) record(err error) {
	if !errors.Is(err, driver.ErrHasty) {
		a.cause = notCallers(err)
	}
}

// better is the last failure that had a cause, if err only says that time was up.
func (a *acquisition) better(err error) error {
	switch {
	case errors.Is(err, errPlaceLost): // it was held when the place was taken, which says nothing of now
		return hide.From(err, ErrLockHeldByOther)
	case a.cause == nil || !isContextError(err):
		return err
	}
	return a.cause
}

// errPlaceLost: the backend dropped a claim that waited, for instance because
// this process was stopped for longer than a heartbeat.
var errPlaceLost = fmt.Errorf("%w: the place in the queue was lost", ErrLockHeldByOther)

// lastPlace is the error of a call that has lost its place, and does not ask again. If nobody
// has answered when it asked for that place, nobody has said that the key is held either.
func (a *acquisition) lastPlace(err error) error {
	if !a.doubt || !errors.Is(err, errPlaceLost) {
		return err
	}
	why := a.cause
	if why == nil {
		why = hide.From(err, ErrLockHeldByOther)
	}
	return fmt.Errorf("%w: %w", ErrUnknownOutcome, mayBeStored(why))
}

// cutShort is the error of an attempt that our own timeout has ended, not the caller's:
// why the last one failed says more than that.
func (a *acquisition) cutShort(err error, bound time.Duration) error {
	class := driver.ClassOf(err)
	switch {
	case class != driver.Ambiguous && a.cause == nil && isContextError(err) && !errors.Is(err, ErrUnavailable):
		return driver.Classify(fmt.Errorf("%w: nothing was sent within %v", ErrUnavailable, bound), class)
	case class != driver.Ambiguous:
		return driver.Classify(a.better(err), class)
	case a.cause == nil:
		return fmt.Errorf("no answer within %v", bound)
	}
	return driver.Classify(fmt.Errorf("no answer within %v, and before that: %w", bound, mayBeStored(a.cause)), class)
}

// notCallers hides a timeout or a cancellation that is not the caller's: the backend's
// client met it, or we gave up waiting for it.
func notCallers(err error) error {
	return hide.From(err, context.DeadlineExceeded, context.Canceled)
}

// ownError is the error of a call, in which the end of a context is found only if it was the
// caller's.
func (c *Client) ownError(ctx context.Context, err error) error {
	switch {
	case err == nil || ctx.Err() != nil:
		return err
	case isContextError(err) && c.closing.Err() != nil:
		return ErrClosed
	}
	return notCallers(err)
}

// mayBeStored is the cause of an ErrUnknownOutcome. That the last attempt reached nobody
// says nothing of those before it.
func mayBeStored(err error) error { return hide.From(err, ErrUnavailable) }

func isContextError(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)
}
