package dlock

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/xerrors"
)

// What can go wrong. Every error of this package wraps one of these, a
// context's error, or the backend's own error; test with errors.Is. Each has a
// stable code, which xerrors.CodeOf returns. docs/errors.md lists which fault of a
// backend leads to which error, how soon, and whether anything may be stored.
var (
	// ErrConfigNil: no Config was given.
	ErrConfigNil = xerrors.New("config_nil", "config is nil")
	// ErrConnectorNil: the backend was chosen, but nothing to reach it with.
	ErrConnectorNil = xerrors.New("connector_nil", "connector is nil")
	// ErrInvalidConfig: a setting, an option or an argument is out of range.
	ErrInvalidConfig = xerrors.New("invalid_config", "invalid configuration")
	// ErrInvalidKey: the key is empty, too long, or not printable UTF-8, or the
	// backend cannot store it.
	ErrInvalidKey = driver.ErrInvalidKey
	// ErrInvalidTTL: the TTL is below what the backend can keep, or above 24 h.
	ErrInvalidTTL = driver.ErrInvalidTTL
	// ErrLockNotHeld: there is nothing to unlock.
	ErrLockNotHeld = xerrors.New("lock_not_held", "lock is not held")
	// ErrLockAlreadyHeld: this Client holds the key, or is acquiring it.
	ErrLockAlreadyHeld = xerrors.New("lock_already_held", "lock is already held by this Client")
	// ErrLockHeldByOther: somebody else holds the key and the wait is over.
	ErrLockHeldByOther = xerrors.New("lock_held_by_other", "lock is held by another")
	// ErrOwnershipLost: the lock was ours, and it ended before it was
	// unlocked. Part of the guarded work may have overlapped with another's.
	ErrOwnershipLost = xerrors.New("ownership_lost", "ownership of the lock was lost")
	// ErrUnavailable: the backend could not be reached. Nothing was sent, so nothing
	// is stored.
	ErrUnavailable = driver.ErrUnavailable
	// ErrDenied: the backend does not let us in, or does not let us do this.
	ErrDenied = driver.ErrDenied
	// ErrNotReady: the backend answers, and cannot serve now: it loads its data, is a
	// replica, has no leader, or has no room.
	ErrNotReady = driver.ErrNotReady
	// ErrUnknownOutcome: the backend did not answer. We clean up in the
	// background; whatever is left ends with the TTL.
	ErrUnknownOutcome = driver.ErrUnknownOutcome
	// ErrUnsupported: this backend cannot do it, or it was not switched on.
	ErrUnsupported = driver.ErrUnsupported
	// ErrClosed: the Client is closed.
	ErrClosed = xerrors.New("closed", "client is closed")
)

// An Error says which operation failed on which key, and why. Where the
// holder is known, it says who is in the way.
type Error struct {
	Op  string
	Key string
	Err error
	// Holder is a claim that holds the key, if it is known, and Waiting is how
	// many claims queued for it.
	Holder  *Claim
	Waiting int
	permits int // that were asked for
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
		fmt.Fprintf(&b, " (held by a client that says nothing of itself, %d waiting)", e.Waiting)
	default:
		who := h.Info.Owner
		if h.Info.Host != "" {
			who = strings.TrimPrefix(who+"@"+h.Info.Host, "@")
		}
		fmt.Fprintf(&b, " (held by %s pid %d for %s, %d waiting)", who, h.Info.PID, h.Age.Round(time.Millisecond), e.Waiting)
	}
	if h := e.Holder; h != nil && e.permits > 0 && h.Limit > 0 && h.Limit != e.permits {
		fmt.Fprintf(&b, "; that is one of %d permits, and %d were asked for: the numbers must be the same", h.Limit, e.permits)
	}
	return b.String()
}

func (e *Error) Unwrap() error { return e.Err }

// fail wraps err for the caller; nil stays nil.
func fail(op, key string, err error) error {
	if err == nil {
		return nil
	}
	return &Error{Op: op, Key: key, Err: err}
}

// ctxError is why ctx ended: its Err, and its cause where that says more.
func ctxError(ctx context.Context) error {
	err, cause := ctx.Err(), context.Cause(ctx)
	if cause == err { //nolint:errorlint // identity, not kind
		return err
	}
	return fmt.Errorf("%w: %w", err, cause)
}
