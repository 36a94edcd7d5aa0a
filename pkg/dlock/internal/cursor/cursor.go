// Package cursor has what the cursors of List have in common.
package cursor

import (
	"fmt"
	"strings"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/xerrors"
)

// mark begins a cursor that is a key, so that other text is known to be none.
const mark = ">"

// After is the cursor of a backend that lists keys in their order, after a page that ends
// with key.
func After(key string) string { return mark + key }

// Key is the inverse of After. "" is the start.
func Key(cursor string) (string, error) {
	key, ok := strings.CutPrefix(cursor, mark)
	if cursor != "" && (!ok || key == "") {
		return "", Invalid(cursor)
	}
	return key, nil
}

// Invalid is the error of a cursor that List has not returned.
func Invalid(cursor string) error {
	return driver.Classify(fmt.Errorf("%w: %q is no cursor of List", xerrors.ErrInvalidConfig, cursor), driver.Fatal)
}
