package filelock_test

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
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
