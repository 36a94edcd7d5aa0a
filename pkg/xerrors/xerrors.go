// Package xerrors adds to the standard package errors what it lacks: errors with a stable
// machine-readable code, which logs, metrics and traces can carry without parsing text.
//
// A code is found through any chain of wrapped errors, so errors.Is and errors.As keep working, and
// errors need no translation at package boundaries.
package xerrors

import "errors"

// New returns a sentinel error. The code is part of the API of the package that declares it: lower
// case, words joined by underscores, never changed once published.
func New(code, text string) error { return &coded{code, text} }

// NewOf returns a sentinel error that is a kind of parent: errors.Is finds both.
func NewOf(parent error, code, text string) error { return &kind{coded{code, text}, parent} }

// Sentinels that several packages export under these names.
var (
	// ErrConfigNil: no configuration was given.
	ErrConfigNil = New("config_nil", "config is nil")
	// ErrInvalidConfig: a setting, an option or an argument is out of range, cannot be read, or
	// does not fit the others.
	ErrInvalidConfig = New("invalid_config", "invalid configuration")
)

// WithCode returns err with a code, which takes precedence over any code that err already has. The
// text stays that of err, and errors.Is and errors.As still find err. A nil err stays nil.
func WithCode(err error, code string) error {
	if err == nil {
		return nil
	}
	return &wrapped{err, code}
}

// CodeOf returns the code of the first error in err's tree that has one, or "" if none has. Any
// error type with a Code() string method counts.
func CodeOf(err error) string {
	var c interface{ Code() string }
	if errors.As(err, &c) {
		return c.Code()
	}
	return ""
}

type coded struct{ code, text string }

func (c *coded) Error() string { return c.text }
func (c *coded) Code() string  { return c.code }

type kind struct {
	coded
	parent error
}

func (k *kind) Unwrap() error { return k.parent }

type wrapped struct {
	err  error
	code string
}

func (w *wrapped) Error() string { return w.err.Error() }
func (w *wrapped) Code() string  { return w.code }
func (w *wrapped) Unwrap() error { return w.err }
