// Package xerrors adds to the standard errors what it lacks: errors with a
// stable machine-readable code, which logs, metrics and traces can carry
// without parsing text.
//
// A code is found through any chain of wraps, so errors.Is and errors.As keep
// working and nothing has to be translated at package borders.
package xerrors

import "errors"

// New returns a sentinel. The code is part of the API of whoever declares it:
// lower case, words joined by underscores, never changed once published.
func New(code, text string) error { return &coded{code, text} }

// WithCode returns err with a code, which comes before any that err has already.
// Its text is that of err, and errors.Is and errors.As still find err. A nil err
// stays nil.
func WithCode(err error, code string) error {
	if err == nil {
		return nil
	}
	return &wrapped{err, code}
}

// CodeOf returns the code of the first error in err's tree that has one, and
// "" if none has. Any error type with a Code() string method counts.
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

type wrapped struct {
	err  error
	code string
}

func (w *wrapped) Error() string { return w.err.Error() }
func (w *wrapped) Code() string  { return w.code }
func (w *wrapped) Unwrap() error { return w.err }
