// Package hide keeps errors.Is from finding errors that would mislead the caller of a lock, such as
// a timeout that is not the caller's own.
package hide

import (
	"errors"
	"slices"
)

// From returns err without the targets: errors.Is finds none of them in it, and everything else as
// before.
func From(err error, targets ...error) error {
	if !slices.ContainsFunc(targets, func(t error) bool { return errors.Is(err, t) }) {
		return err
	}
	return &hidden{err, targets}
}

// hidden does not unwrap, so it must answer errors.Is and errors.As itself.
type hidden struct {
	err     error
	targets []error
}

func (h *hidden) Error() string { return h.err.Error() }

func (h *hidden) Is(target error) bool {
	return !slices.Contains(h.targets, target) && errors.Is(h.err, target)
}

func (h *hidden) As(target any) bool { return errors.As(h.err, target) }
