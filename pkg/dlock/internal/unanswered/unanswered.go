// Package unanswered tells why a renewal was not answered for some claims.
package unanswered

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/xerrors"
)

var errNoAnswer = errors.New("no answer")

// Cause returns the error of a renewal: nil if every claim was answered, and otherwise why those that are
// Unknown were not. errs has the cause of each claim, and other is the cause of those without one.
//
// If there are several causes, the error names them, and is what all of them are: the caller of one lock must not take the
// cause of another for its own.
func Cause(states []driver.State, errs []error, other error) error {
	var causes []error
	seen := map[string][]error{} // by text
	for i, st := range states {
		if st.Phase != driver.Unknown {
			continue
		}
		err := cmp.Or(errs[i], other, errNoAnswer)
		text := textOf(err)
		if !slices.ContainsFunc(seen[text], func(c error) bool { return equal(c, err) }) {
			seen[text] = append(seen[text], err)
			causes = append(causes, err)
		}
	}
	switch len(causes) {
	case 0:
		return nil
	case 1:
		return causes[0]
	}
	several := &several{causes, uniform(causes, equal)}
	if !uniform(causes, alike) {
		return several
	}
	return driver.Classify(several, driver.ClassOf(causes[0]))
}

// uniform reports whether all causes are the same to a comparison.
func uniform(causes []error, same func(a, b error) bool) bool {
	return !slices.ContainsFunc(causes, func(err error) bool { return !same(err, causes[0]) })
}

// kinds are what an error can mean to callers.
var kinds = []error{
	driver.ErrDenied, driver.ErrNotReady, driver.ErrUnavailable, driver.ErrNotALock, driver.ErrInvalidKey, driver.ErrUnsupported, driver.ErrInvalidTTL,
}

// alike reports whether two errors mean the same to the engine and to callers.
func alike(a, b error) bool {
	differs := func(kind error) bool { return errors.Is(a, kind) != errors.Is(b, kind) }
	return driver.ClassOf(a) == driver.ClassOf(b) && !slices.ContainsFunc(kinds, differs)
}

// equal reports whether two errors also have the same code.
func equal(a, b error) bool { return alike(a, b) && xerrors.CodeOf(a) == xerrors.CodeOf(b) }

// several is an error with several causes.
type several struct {
	causes  []error
	oneCode bool // they are of one kind and have one code
}

// maxNamed is how many causes an error names.
const maxNamed = 4

func (s *several) Error() string {
	var texts []string
	for _, err := range s.causes[:min(len(s.causes), maxNamed)] {
		texts = append(texts, textOf(err))
	}
	if more := len(s.causes) - maxNamed; more > 0 {
		texts = append(texts, fmt.Sprintf("and %d more", more))
	}
	return "several causes: " + strings.Join(texts, "; ")
}

// textOf leaves out the name of our own timeout, which is that of a caller's context.
func textOf(err error) string {
	if err == context.DeadlineExceeded { //nolint:errorlint // one that it is wrapped in says more
		return "no answer in time"
	}
	return err.Error()
}

// Is reports whether all causes are the target.
func (s *several) Is(target error) bool {
	return !slices.ContainsFunc(s.causes, func(err error) bool { return !errors.Is(err, target) })
}

// As finds what an error of the common kind has, such as its code.
func (s *several) As(target any) bool { return s.oneCode && errors.As(s.causes[0], target) }

// HasSeveral reports whether an error has several causes.
func HasSeveral(err error) bool {
	var s *several
	return errors.As(err, &s)
}
