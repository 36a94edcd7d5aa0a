package dlock

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/xerrors"
)

// Errors. Every error of this package wraps one of these, a context's error, or
// the backend's own error; test with errors.Is. Each has a stable code, which
// xerrors.CodeOf returns. docs/errors.md lists which fault of a backend leads to
// which error, how soon, and whether anything may be stored.
var (
	// ErrConfigNil: no Config was given.
	ErrConfigNil = xerrors.ErrConfigNil
	// ErrConnectorNil: no connector or backend was injected, or it or its client is nil.
	ErrConnectorNil = driver.ErrConnectorNil
	// ErrInvalidConfig: a setting, an option or an argument is out of range.
	ErrInvalidConfig = xerrors.ErrInvalidConfig
	// ErrInvalidKey: the key is empty, too long, or not printable UTF-8, or the
	// backend cannot store it.
	ErrInvalidKey = driver.ErrInvalidKey
	// ErrInvalidTTL: the TTL is below what the backend can keep, or above 24 h.
	ErrInvalidTTL = driver.ErrInvalidTTL
	// ErrLockNotHeld: there is nothing to unlock.
	ErrLockNotHeld = driver.ErrNotHeld
	// ErrLockAlreadyHeld: this Client has locked the key with Lock or TryLock, or is
	// locking it, or the context carries a Guard of the key.
	ErrLockAlreadyHeld = xerrors.New("lock_already_held", "lock is already held by this Client")
	// ErrLockHeldByOther: another caller holds the key or waits for it, and the wait has ended.
	ErrLockHeldByOther = xerrors.New("lock_held_by_other", "lock is held by another")
	// ErrOwnershipLost: the lock was held, and ended before it was unlocked. Part of
	// the guarded work may have overlapped with the work of another holder.
	ErrOwnershipLost = xerrors.New("ownership_lost", "ownership of the lock was lost")
	// ErrUnavailable: the backend could not be reached. Nothing was sent, so nothing
	// is stored.
	ErrUnavailable = driver.ErrUnavailable
	// ErrDenied: the backend refused the credentials, or does not permit the call.
	ErrDenied = driver.ErrDenied
	// ErrNotReady: the backend answers, but cannot serve the call now: it loads its
	// data, is a replica, has no leader, or has no space.
	ErrNotReady = driver.ErrNotReady
	// ErrUnknownOutcome: the backend did not answer. Cleanup continues in the
	// background; what it cannot remove ends with the TTL.
	ErrUnknownOutcome = driver.ErrUnknownOutcome
	// ErrUnsupported: the backend cannot do it, or it was not enabled.
	ErrUnsupported = driver.ErrUnsupported
	// ErrClosed: the Client is closed.
	ErrClosed = driver.ErrClosed
)

// An Error says which operation failed on which key, and why. It names the holder if it is
// known.
type Error struct {
	Op  string
	Key string
	Err error
	// Holder is a claim that holds the key, or nil if it is unknown. Waiters is how many other claims are
	// queued for the key, or negative if the backend cannot tell, as with files.
	Holder  *Claim
	Waiters int
	permits int // as requested
}

func (e *Error) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "dlock: %s", e.Op)
	if e.Key != "" {
		fmt.Fprintf(&b, " %q", e.Key)
	}
	fmt.Fprintf(&b, ": %v", e.Err)
	switch h := e.Holder; {
	case h == nil:
	case h.Info == Info{}:
		fmt.Fprintf(&b, " (held by a client that does not describe itself, %s)", e.waiting())
	default:
		who := h.Info.Owner
		if h.Info.Host != "" {
			who = strings.TrimPrefix(who+"@"+h.Info.Host, "@")
		}
		fmt.Fprintf(&b, " (held by %s pid %d for %s, %s)", who, h.Info.PID, rounded(h.Age), e.waiting())
	}
	if h := e.Holder; h != nil && e.permits > 0 && h.Limit > 0 && h.Limit != e.permits {
		fmt.Fprintf(&b, "; that is one of %d permits, and %d were requested: all callers must use the same limit", h.Limit, e.permits)
	}
	return b.String()
}

func (e *Error) waiting() string {
	if e.Waiters < 0 {
		return "waiters unknown"
	}
	return fmt.Sprintf("%d waiting", e.Waiters)
}

// rounded is a duration for people.
func rounded(d time.Duration) time.Duration {
	if d < time.Second {
		return d.Round(time.Millisecond)
	}
	return d.Round(time.Second)
}

func (e *Error) Unwrap() error { return e.Err }

// fail wraps err for the caller, and returns nil if err is nil. It does not repeat the key if err
// is an *Error of the same key.
func fail(op, key string, err error) error {
	if err == nil {
		return nil
	}
	if before, ok := err.(*Error); ok && before.Key == key && before.Holder == nil { //nolint:errorlint // only the outermost error
		err = before.Err
	}
	return &Error{Op: op, Key: key, Err: err}
}

// ctxError returns why ctx ended: its Err, and its cause if that says more.
func ctxError(ctx context.Context) error {
	err, cause := ctx.Err(), context.Cause(ctx)
	if cause == nil || cause.Error() == err.Error() { // other errors may not be comparable
		return err
	}
	return fmt.Errorf("%w: %w", err, cause)
}
