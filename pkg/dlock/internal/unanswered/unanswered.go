// Package unanswered tells why a renewal was not answered for some claims.
package unanswered

import (
	"cmp"
	"errors"
	"fmt"
	"strings"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// maxCauses is how many causes an error names.
const maxCauses = 4

var errNoAnswer = errors.New("no answer")

// Cause returns the error of a renewal: nil if every claim was answered, and otherwise why those that are
// Unknown were not. errs has the cause of each claim, and other is the cause of those without one. If there
// are several causes, the error names them and wraps none: the caller of one lock must not take the cause of
// another for its own.
func Cause(states []driver.State, errs []error, other error) error {
	var first error
	var texts []string
	seen := map[string]bool{}
	for i, st := range states {
		if st.Phase != driver.Unknown {
			continue
		}
		err := cmp.Or(errs[i], other, errNoAnswer)
		first = cmp.Or(first, err)
		if text := err.Error(); !seen[text] {
			seen[text] = true
			texts = append(texts, text)
		}
	}
	switch n := len(texts); {
	case n <= 1:
		return first
	case n > maxCauses:
		texts = append(texts[:maxCauses], fmt.Sprintf("and %d more", n-maxCauses))
	}
	return errors.New("several causes: " + strings.Join(texts, "; "))
}
