//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package fence_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/ceyewan/genesis/pkg/dlock/fence"
)

// A fence is open to those who can write the file, whatever the umask is, and to no others: they
// could lock it.
func TestModeOfFence(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ dir, perm, want fs.FileMode }{
		{0o755, 0o600, 0o600},
		{0o755, 0o644, 0o600},
		{0o755, 0o666, 0o600}, // the directory lets no other replace it
		{0o777, 0o644, 0o600},
		{0o775, 0o664, 0o660},
		{0o775, 0o666, 0o660},
		{0o777, 0o666, 0o666},
		{0o777, 0o400, 0o600},
		{0o777 | fs.ModeSticky, 0o666, 0o600},
	} {
		name := fmt.Sprintf("%v in %v", c.perm, c.dir)
		dir := t.TempDir()
		if err := os.Chmod(dir, c.dir); err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(dir, "file")
		if err := fence.WriteFile(t.Context(), path, nil, c.perm, 1); err != nil {
			t.Fatal(err)
		}
		if got := modeOf(t, path+".fence"); got != c.want {
			t.Errorf("%s: the fence is %v, want %v", name, got, c.want)
		}
		// RaiseFile has no mode of its own.
		if err := errors.Join(os.Chmod(path, c.perm), os.Remove(path+".fence"), fence.RaiseFile(t.Context(), path, 1)); err != nil {
			t.Fatal(err)
		}
		if got := modeOf(t, path+".fence"); got != c.want {
			t.Errorf("%s: the raised fence is %v, want %v", name, got, c.want)
		}
	}
}

// A fence that was raised before there was a file is opened to the others by the first write.
func TestFenceIsWidened(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "file")
	if err := errors.Join(os.Chmod(dir, 0o775), fence.RaiseFile(t.Context(), path, 1)); err != nil {
		t.Fatal(err)
	}
	if got := modeOf(t, path+".fence"); got != 0o600 {
		t.Errorf("the fence is %v", got)
	}
	if err := fence.WriteFile(t.Context(), path, nil, 0o664, 1); err != nil {
		t.Fatal(err)
	}
	if got := modeOf(t, path+".fence"); got != 0o660 {
		t.Errorf("the fence is %v", got)
	}
}

func modeOf(t *testing.T, path string) fs.FileMode {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info.Mode().Perm()
}
