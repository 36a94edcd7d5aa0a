package sharedtimeout_test

import (
	"context"
	"testing"

	"github.com/ceyewan/genesis/pkg/dlock/internal/sharedtimeout"
)

// An Uncancelled context has the values of the caller's, and then its own.
func TestUncancelledHasBothValues(t *testing.T) {
	type key string
	own := context.WithValue(context.WithValue(t.Context(), key("a"), "own"), key("b"), "own")
	u := sharedtimeout.Uncancelled{Context: own, Values: context.WithValue(t.Context(), key("a"), "caller's")}
	if a, b, c := u.Value(key("a")), u.Value(key("b")), u.Value(key("c")); a != "caller's" || b != "own" || c != nil {
		t.Errorf("values are %v, %v and %v", a, b, c)
	}
}
