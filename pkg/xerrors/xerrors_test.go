package xerrors_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/ceyewan/genesis/pkg/xerrors"
)

func TestCodes(t *testing.T) {
	busy := xerrors.New("busy", "it is taken")
	wrapped := fmt.Errorf("outer: %w", errors.Join(errors.New("other"), busy))
	for err, want := range map[error]string{busy: "busy", wrapped: "busy", errors.New("plain"): "", nil: ""} {
		if got := xerrors.CodeOf(err); got != want {
			t.Errorf("CodeOf(%v) = %q, want %q", err, got, want)
		}
	}
	if busy.Error() != "it is taken" || !errors.Is(wrapped, busy) {
		t.Errorf("%v, %v", busy, wrapped)
	}
	if errors.Is(busy, xerrors.New("busy", "it is taken")) {
		t.Error("two sentinels of one code are the same error")
	}
}
