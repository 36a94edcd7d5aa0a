package filelock_test

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"strings"
	"testing"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/filelock"
	"github.com/ceyewan/genesis/pkg/xerrors"
)

// A key must not have two files: the file that a script locks, and the one that a directory has for the
// key. Whichever is there first, taking the other one is refused, and it is not created.
func TestTwoFilesOfAKey(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		key, locked, other string
		open               func(dir string) *filelock.Store
	}{
		"a directory, then its file unescaped": {"order:1", "order%3a1.lock", "order:1.lock", func(dir string) *filelock.Store {
			return filelock.NewFile(filepath.Join(dir, "order:1.lock"))
		}},
		"a file, then its name escaped": {"order:1", "order:1.lock", "order%3a1.lock", func(dir string) *filelock.Store {
			return filelock.NewFile(filepath.Join(dir, "order%3a1.lock"))
		}},
		"a file, then its directory": {"myApp", "myApp.lock", "my%41pp.lock", func(dir string) *filelock.Store {
			return filelock.New(dir)
		}},
		"a directory, then a file": {"myApp", "my%41pp.lock", "myApp.lock", func(dir string) *filelock.Store {
			return filelock.NewFile(filepath.Join(dir, "myApp.lock"))
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := mkdir(t, 0o700)
			flock := exec.CommandContext(t.Context(), "flock", filepath.Join(dir, test.locked), "sh", "-c", "echo locked; cat")
			in, err := flock.StdinPipe()
			must(err)
			out, err := flock.StdoutPipe()
			must(err)
			must(flock.Start())
			_, err = out.Read(make([]byte, 1))
			must(err)
			d := open(t, test.open(dir), driver.Options{})
			t.Cleanup(func() { _ = d.Close() })
			for _, r := range []driver.Request{try(test.key), wait(test.key), {Ref: ref(test.key), Mode: driver.Shared}} {
				st, err := d.Acquire(ctx, r)
				if !errors.Is(err, xerrors.ErrInvalidConfig) || driver.ClassOf(err) != driver.Fatal ||
					!strings.Contains(err.Error(), test.locked) || !strings.Contains(err.Error(), test.other) {
					t.Errorf("Acquire = %v, %v", st.Phase, err)
				}
			}
			if _, err := os.Lstat(filepath.Join(dir, test.other)); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("%s was made: %v", test.other, err)
			}
			must(in.Close())
			must(flock.Wait())
		})
	}
}

// Whether a directory lists a name is found out without leaving the directory open.
func TestIsListedClosesDirectory(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // it would close what is left open
	dir := mkdir(t, 0o700)
	must(os.WriteFile(filepath.Join(dir, "k.lock"), nil, 0o600))
	for name, want := range map[string]bool{"k.lock": true, "K.lock": false} {
		if got := filelock.IsListed(dir, name); got != want {
			t.Errorf("%s is listed: %v", name, got)
		}
	}
	if n := openIn(t, dir); n != 0 {
		t.Errorf("%d descriptors are left", n)
	}
}

// Where names cannot be read, a file that exists counts: else a key could have two files.
func TestUnreadableNamesCount(t *testing.T) {
	t.Parallel()
	noDir := filepath.Join(t.TempDir(), "file")
	must(os.WriteFile(noDir, nil, 0o600))
	for _, dir := range []string{noDir, noDir + ".missing"} {
		if !filelock.IsListed(dir, "k.lock") {
			t.Errorf("%s: not listed", dir)
		}
	}
}
