package driver

import "errors"

// Errors that every backend returns for the same reasons, around errors of its own and
// its client's; package dlock exports them under the same names. docs/errors.md lists
// which fault leads to which.
var (
	// ErrUnavailable: the backend could not be reached. Nothing was sent, so nothing
	// is stored; the Class of the error is never Ambiguous.
	ErrUnavailable error = &sentinel{"unavailable", "backend is unavailable"}
	// ErrDenied: the backend does not let us in, or does not let us do this.
	ErrDenied error = &sentinel{"denied", "backend denies access"}
	// ErrNotReady: the backend answers, and cannot serve now: it loads its data, is a
	// replica, has no leader, or has no room.
	ErrNotReady error = &sentinel{"not_ready", "backend is not ready"}
	// ErrUnknownOutcome: a call was not answered, and may have been carried out. A
	// Driver says so with the Class Ambiguous; package dlock adds this error.
	ErrUnknownOutcome error = &sentinel{"unknown_outcome", "outcome is unknown"}
)

// Errors that a Driver returns, wrapped or as they are; package dlock exports
// them under the same names. All three are Fatal: nothing was stored.
var (
	// ErrUnsupported: the backend cannot do what was asked.
	ErrUnsupported error = &sentinel{"unsupported", "not supported by this backend"}
	// ErrInvalidKey: the backend cannot store a claim under this name.
	ErrInvalidKey error = &sentinel{"invalid_key", "invalid key"}
	// ErrInvalidTTL: the backend cannot keep this TTL.
	ErrInvalidTTL error = &sentinel{"invalid_ttl", "invalid TTL"}
)

// ErrHasty: the Driver gave up a call before its context ended, so as not to outlast a
// context that is cancelled. The call may have been carried out, or may yet be, and is to be
// made again at once; the Driver is then more patient. Acquire and Release alone return it.
var ErrHasty = errors.New("the call was given up early")

// A sentinel carries a machine-readable code as package xerrors reads it.
type sentinel struct{ code, text string }

func (s *sentinel) Error() string { return s.text }
func (s *sentinel) Code() string  { return s.code }

// A Class says what an error means for the call that met it.
type Class uint8

const (
	// Ambiguous: the call may have been carried out, or may yet be. This is
	// the class of every error that says nothing else.
	Ambiguous Class = iota
	// Transient: the call was not carried out; asking again may help.
	Transient
	// Fatal: the call was not carried out, and asking again will not help.
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

// ClassOf returns the class that err was marked with.
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
