// Package unanswered tells why a renewal was not answered for some claims.
package unanswered

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

var errNoAnswer = errors.New("no answer")

// Cause returns the error of a renewal: nil if every claim was answered, and otherwise why those that are
// Unknown were not. errs has the cause of each claim, and other is the cause of those without one.
//
// If there are several causes, the error names them, and is what all of them are: the caller of one lock must not take the
// cause of another for its own.
func Cause(states []driver.State, errs []error, other error) error {
	var causes []error
	seen := map[string]bool{}
	for i, st := range states {
		if st.Phase != driver.Unknown {
			continue
		}
		err := cmp.Or(errs[i], other, errNoAnswer)
		if text := err.Error(); !seen[text] {
			seen[text] = true
			causes = append(causes, err)
		}
	}
	switch len(causes) {
	case 0:
		return nil
	case 1:
		return causes[0]
	}
	mixed := slices.ContainsFunc(causes, func(err error) bool { return !alike(err, causes[0]) })
	return &several{causes, mixed}
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

// several is an error with several causes.
type several struct {
	causes []error
	mixed  bool // they are not of one kind
}

// maxNamed is how many causes an error names.
const maxNamed = 4

func (s *several) Error() string {
	var texts []string
	for _, err := range s.causes[:min(len(s.causes), maxNamed)] {
		texts = append(texts, err.Error())
	}
	if more := len(s.causes) - maxNamed; more > 0 {
		texts = append(texts, fmt.Sprintf("and %d more", more))
	}
	return "several causes: " + strings.Join(texts, "; ")
}

// Is reports whether all causes are the target.
func (s *several) Is(target error) bool {
	return !slices.ContainsFunc(s.causes, func(err error) bool { return !errors.Is(err, target) })
}

// As finds what an error of the common kind has, such as its class.
func (s *several) As(target any) bool { return !s.mixed && errors.As(s.causes[0], target) }

// HasSeveral reports whether an error has several causes.
func HasSeveral(err error) bool {
	_, ok := err.(*several) //nolint:errorlint // the error of a renewal is not wrapped
	return ok
}
