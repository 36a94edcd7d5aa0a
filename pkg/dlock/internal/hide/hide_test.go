package hide_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"testing"

	"github.com/ceyewan/genesis/pkg/dlock/internal/hide"
)

func TestFrom(t *testing.T) {
	kept := errors.New("kept")
	op := &net.OpError{Op: "dial", Err: context.DeadlineExceeded}
	err := fmt.Errorf("%w: %w", kept, op)
	got := fmt.Errorf("around: %w", hide.From(err, context.DeadlineExceeded, context.Canceled))
	var found *net.OpError
	if errors.Is(got, context.DeadlineExceeded) || !errors.Is(got, kept) || !errors.As(got, &found) || found != op {
		t.Errorf("%v", got)
	}
	if got.Error() != "around: "+err.Error() {
		t.Errorf("the text is %q", got)
	}
	if hide.From(err, context.Canceled) != err || hide.From(nil, context.Canceled) != nil { //nolint:errorlint // identity, not kind
		t.Error("an error without the target has changed")
	}
}
