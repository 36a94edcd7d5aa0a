package driver

import "errors"

// Errors that every backend returns for the same reasons. They wrap the errors of the backend and
// its client. Package dlock exports them under the same names. docs/errors.md lists which fault
// leads to which error.
var (
	// ErrUnavailable: the backend could not be reached. Nothing was sent, so nothing is stored; the
	// Class of the error is never Ambiguous.
	ErrUnavailable error = &sentinel{"unavailable", "backend is unavailable"}
	// ErrDenied: the backend refuses the credentials, or does not permit the operation.
	ErrDenied error = &sentinel{"denied", "backend denies access"}
	// ErrNotReady: the backend answers but cannot serve now: it is loading its data, is a replica,
	// has no leader, or has no space.
	ErrNotReady error = &sentinel{"not_ready", "backend is not ready"}
	// ErrUnknownOutcome: a call was not answered and may have been carried out. A Driver reports
	// this with the Class Ambiguous; package dlock adds this error.
	ErrUnknownOutcome error = &sentinel{"unknown_outcome", "outcome is unknown"}
)

// Errors that a Driver returns, wrapped or unwrapped. All three are Fatal: nothing was stored.
var (
	// ErrUnsupported: the backend does not support the request.
	ErrUnsupported error = &sentinel{"unsupported", "not supported by this backend"}
	// ErrInvalidKey: the backend cannot store a claim under this key.
	ErrInvalidKey error = &sentinel{"invalid_key", "invalid key"}
	// ErrInvalidTTL: the backend does not support this TTL.
	ErrInvalidTTL error = &sentinel{"invalid_ttl", "invalid TTL"}
)

// ErrConnectorNil: the client or connector of a backend is nil.
var ErrConnectorNil error = &sentinel{"connector_nil", "connector is nil"}

// Errors that do not describe the outcome on their own.
var (
	// ErrNotALock: the value stored under the key is not a lock. It is left unchanged.
	ErrNotALock error = &sentinel{"not_a_lock", "what is stored there is not a lock"}
	// ErrNotHeld: the lock is not held, or not with this token. Package dlock calls it
	// ErrLockNotHeld.
	ErrNotHeld error = &sentinel{"lock_not_held", "lock is not held"}
	// ErrClosed: the client that was called is closed.
	ErrClosed error = &sentinel{"closed", "client is closed"}
)

// A sentinel carries a machine-readable code in the form that package xerrors reads.
type sentinel struct{ code, text string }

func (s *sentinel) Error() string { return s.text }
func (s *sentinel) Code() string  { return s.code }

// A Class says what an error means for the call that returned it.
type Class uint8

const (
	// Ambiguous: the call may have been carried out, or may still be. This is the class of every
	// error without a class.
	Ambiguous Class = iota
	// Transient: the call was not carried out; a retry may succeed.
	Transient
	// Fatal: the call was not carried out, and a retry will not help.
	Fatal
)

type classified struct {
	error
	class Class
}

func (c *classified) Unwrap() error { return c.error }

// Classify marks err with a class. Classify(nil, c) is nil.
func Classify(err error, c Class) error {
	if err == nil {
		return nil
	}
	return &classified{err, c}
}

// ClassOf returns the class that err was marked with. Without a mark, it is Fatal for
// ErrUnsupported, ErrInvalidKey and ErrInvalidTTL, and Ambiguous for every other error.
func ClassOf(err error) Class {
	var c *classified
	switch {
	case errors.As(err, &c):
		return c.class
	case errors.Is(err, ErrUnsupported), errors.Is(err, ErrInvalidKey), errors.Is(err, ErrInvalidTTL):
		return Fatal
	}
	return Ambiguous
}
