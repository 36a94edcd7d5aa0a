package xerrors_test

import (
	"errors"
	"fmt"
	"io/fs"
	"testing"

	"go.uber.org/goleak"

	"github.com/ceyewan/genesis/pkg/xerrors"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

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

func TestNewOf(t *testing.T) {
	parent := xerrors.New("unavailable", "it is away")
	child := xerrors.NewOf(parent, "refused", "it refuses")
	err := fmt.Errorf("outer: %w", child)
	if !errors.Is(err, child) || !errors.Is(err, parent) || errors.Is(parent, child) {
		t.Error("the child is not the parent, or the parent is the child")
	}
	if xerrors.CodeOf(err) != "refused" || err.Error() != "outer: it refuses" {
		t.Errorf("%v, code %s", err, xerrors.CodeOf(err))
	}
}

func TestWithCode(t *testing.T) {
	busy := xerrors.New("busy", "it is taken")
	err := fmt.Errorf("outer: %w", xerrors.WithCode(fmt.Errorf("disk 7: %w", &fs.PathError{Op: "open", Path: "x", Err: busy}), "disk_failed"))
	if got := xerrors.CodeOf(err); got != "disk_failed" {
		t.Errorf("the code is %q", got)
	}
	if got := err.Error(); got != "outer: disk 7: open x: it is taken" {
		t.Errorf("the text is %q", got)
	}
	var path *fs.PathError
	if !errors.Is(err, busy) || !errors.As(err, &path) {
		t.Error("what was wrapped is not found")
	}
	if err := xerrors.WithCode(nil, "none"); err != nil {
		t.Errorf("nil became %v", err)
	}
}
