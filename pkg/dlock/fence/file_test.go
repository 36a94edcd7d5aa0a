//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package fence_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ceyewan/genesis/internal/fencetest"
	"github.com/ceyewan/genesis/pkg/dlock/fence"
)

func TestFileRefusesLateWrites(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	fencetest.Run(t, fencetest.Resource{
		Fenced: func(ctx context.Context, name string, token int64, value string) error {
			return fence.WriteFile(ctx, filepath.Join(dir, name), []byte(value), 0o600, token)
		},
		Plain: func(_ context.Context, name, value string) error {
			return os.WriteFile(filepath.Join(dir, name), []byte(value), 0o600)
		},
		Read: func(_ context.Context, name string) (string, error) {
			text, err := os.ReadFile(filepath.Join(dir, name))
			return string(text), err
		},
	})
	left, err := filepath.Glob(filepath.Join(dir, ".*"))
	if err != nil || len(left) != 0 {
		t.Errorf("temporary files are left: %q, %v", left, err)
	}
}

func mustWrite(t *testing.T, path, text string, token int64) {
	t.Helper()
	err := fence.WriteFile(t.Context(), path, []byte(text), 0o640, token)
	if err != nil {
		t.Fatal(err)
	}
}

func TestFileAcceptsTheSameTokenAgain(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "file")
	mustWrite(t, path, "a", 7)
	mustWrite(t, path, "b", 7)
	err := fence.WriteFile(t.Context(), path, []byte("late"), 0o600, 6)
	var stale *fence.StaleError
	if !errors.Is(err, fence.ErrStale) || !errors.As(err, &stale) || *stale != (fence.StaleError{Resource: path, Token: 6, Seen: 7}) {
		t.Errorf("error is %v", err)
	}
	text, err := os.ReadFile(path)
	if string(text) != "b" || err != nil {
		t.Errorf("content is %q, %v", text, err)
	}
}

// As with os.WriteFile, the mode of a new file is the given one without what umask removes.
func TestFileHasItsMode(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	ours, standard := filepath.Join(dir, "ours"), filepath.Join(dir, "standard")
	mustWrite(t, ours, "a", 1)
	if err := os.WriteFile(standard, nil, 0o640); err != nil {
		t.Fatal(err)
	}
	a, err1 := os.Stat(ours)
	b, err2 := os.Stat(standard)
	if err := errors.Join(err1, err2); err != nil || a.Mode() != b.Mode() {
		t.Errorf("mode %v, want %v: %v", a.Mode(), b.Mode(), err)
	}
}

func TestRaisedFileRefusesSmallerTokens(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "file")
	mustWrite(t, path, "a", 5)
	if err := fence.RaiseFile(t.Context(), path, 9); err != nil {
		t.Fatal(err)
	}
	for name, err := range map[string]error{
		"write": fence.WriteFile(t.Context(), path, []byte("late"), 0o600, 5),
		"raise": fence.RaiseFile(t.Context(), path, 5),
	} {
		if !errors.Is(err, fence.ErrStale) {
			t.Errorf("%s: %v", name, err)
		}
	}
	text, err := os.ReadFile(path)
	if string(text) != "a" || err != nil {
		t.Errorf("content is %q, %v", text, err)
	}
}

// A write that fails has raised the fence: the other order would let a stale holder write after it.
func TestFailedWriteHasRaisedTheFence(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "file")
	if err := os.MkdirAll(filepath.Join(fence.TemporaryName(path), "in the way"), 0o700); err != nil {
		t.Fatal(err)
	}
	err := fence.WriteFile(t.Context(), path, nil, 0o600, 5)
	var failed *fs.PathError
	if !errors.As(err, &failed) {
		t.Fatalf("error is %v", err)
	}
	err = fence.WriteFile(t.Context(), path, nil, 0o600, 4)
	if !errors.Is(err, fence.ErrStale) {
		t.Errorf("error is %v", err)
	}
}

func TestDamagedFenceOfFileRefuses(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{"short": "12\n", "no number": strings.Repeat("x", 20), "zeros": strings.Repeat("\x00", 20), "long": strings.Repeat("1", 30), "too great": strings.Repeat("9", 19) + "\n"} {
		path := filepath.Join(t.TempDir(), "file")
		if err := os.WriteFile(path+".fence", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		err := fence.WriteFile(t.Context(), path, []byte("a"), 0o600, 5)
		if !errors.Is(err, fence.ErrDamaged) {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: the file was written", name)
		}
	}
}

// writeWithin writes a file that another writer has locked, with a context that ends soon.
func writeWithin(t *testing.T, path string, within time.Duration) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- fence.WriteFile(ctx, path, []byte("b"), 0o600, 2) }()
	select {
	case err := <-done:
		if ctx.Err() == nil {
			t.Errorf("it returned before its context ended: %v", err)
		}
		return err
	case <-time.After(within + time.Minute):
		t.Fatal("it waits on after its context has ended")
		return nil
	}
}

func TestWaitForFileEndsWithContext(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "file")
	mustWrite(t, path, "a", 1)
	other, err := os.Open(path + ".fence")
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	err = syscall.Flock(int(other.Fd()), syscall.LOCK_EX)
	if err != nil {
		t.Fatal(err)
	}
	for within := 50 * time.Millisecond; ; within *= 2 { // a machine may not get to the lock in so short a time
		err = writeWithin(t, path, within)
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("error is %v", err)
		}
		if strings.Contains(err.Error(), "locked") {
			break
		}
		if within > 30*time.Second {
			t.Fatalf("the wait for the lock is not named: %v", err)
		}
	}
	err = syscall.Flock(int(other.Fd()), syscall.LOCK_UN)
	if err != nil {
		t.Fatal(err)
	}
	mustWrite(t, path, "b", 2)
}

func TestFileRefusesBadInput(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	link := filepath.Join(dir, "link")
	if err := os.Symlink(filepath.Join(dir, "target"), link); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		path  string
		token int64
	}{
		"no path": {"", 1}, "token 0": {filepath.Join(dir, "a"), 0}, "negative token": {filepath.Join(dir, "a"), -1},
		"directory": {dir, 1}, "link": {link, 1}, "fence": {filepath.Join(dir, "a.fence"), 1},
	} {
		err := fence.WriteFile(t.Context(), c.path, nil, 0o600, c.token)
		var input *fence.InputError
		if !errors.Is(err, fence.ErrInvalid) || !errors.As(err, &input) {
			t.Errorf("%s: %v", name, err)
		}
	}
	all, err := os.ReadDir(dir)
	if len(all) != 1 || err != nil {
		t.Errorf("%d files, %v", len(all), err)
	}
	err = fence.WriteFile(t.Context(), filepath.Join(dir, "missing", "file"), nil, 0o600, 1)
	if !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without a directory: %v", err)
	}
}

// A name is as long as the fence allows, or nothing happens.
func TestLongNames(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	longest := filepath.Join(dir, strings.Repeat("n", 255-len(".fence")))
	mustWrite(t, longest, "a", 1)
	err := fence.WriteFile(t.Context(), longest+"n", nil, 0o600, 1)
	if !errors.Is(err, syscall.ENAMETOOLONG) {
		t.Errorf("error is %v", err)
	}
	all, err := os.ReadDir(dir)
	if len(all) != 2 || err != nil {
		t.Errorf("%d files, %v", len(all), err)
	}
}

func TestEndedContextLeavesNoFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	cause := errors.New("my cause")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(cause)
	for name, err := range map[string]error{
		"write": fence.WriteFile(ctx, filepath.Join(dir, "file"), nil, 0o600, 1),
		"raise": fence.RaiseFile(ctx, filepath.Join(dir, "file"), 1),
	} {
		if !errors.Is(err, cause) || strings.Contains(err.Error(), "locked") {
			t.Errorf("%s: %v", name, err)
		}
	}
	all, err := os.ReadDir(dir)
	if len(all) != 0 || err != nil {
		t.Errorf("%d files, %v", len(all), err)
	}
}
