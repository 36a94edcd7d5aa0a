package filelock_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/filelock"
)

// leadNowhere lists symbolic links that exist but lead nowhere.
var leadNowhere = map[string]string{"dangling": "/nowhere/x", "loop": "loop"}

// A symbolic link that leads nowhere is always refused, as the directory and as its parent.
func TestDirectoryLeadsNowhere(t *testing.T) {
	t.Parallel()
	base := mkdir(t, 0o755)
	for name, target := range leadNowhere {
		path := filepath.Join(base, name)
		if err := os.Symlink(target, path); err != nil {
			t.Fatal(err)
		}
		refuses(t, filelock.New(path), filelock.ErrInsecureDir)
		refuses(t, filelock.New(filepath.Join(path, "locks")), filelock.ErrInsecureDir)
		refuses(t, filelock.New(path, filelock.WithSharedDir()), filelock.ErrInsecureDir)
		if os.Geteuid() == 0 && name == "dangling" {
			refuses(t, filelock.New(filepath.Join(path, "locks"), filelock.WithSharedDir()), filelock.ErrInsecureDir)
		}
	}
}

// A Lock in such a directory ends at once.
func TestLockWhereDirectoryLeadsNowhere(t *testing.T) {
	t.Parallel()
	path := filepath.Join(mkdir(t, 0o700), "locks")
	if err := os.Symlink("/nowhere/x", path); err != nil {
		t.Fatal(err)
	}
	c, err := dlock.New(&dlock.Config{Backend: "file"}, dlock.WithBackend(filelock.New(path)))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	bounded, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	err = c.Lock(bounded, "k")
	if !errors.Is(err, filelock.ErrInsecureDir) || bounded.Err() != nil {
		t.Errorf("Lock: %v", err)
	}
}

// All users can traverse the parents that are created for a shared directory, whatever the umask
// is. The umask belongs to the process, so this test is not parallel.
func TestParentsOfSharedDirectory(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: only root creates a shared directory that is missing")
	}
	base := mkdir(t, 0o750)
	dir := filepath.Join(base, "a", "b", "locks")
	old := syscall.Umask(0o077)
	defer syscall.Umask(old)
	accepts(t, filelock.New(dir, filelock.WithSharedDir()))
	for path, want := range map[string]os.FileMode{
		base: 0o750, filepath.Join(base, "a"): 0o755, filepath.Join(base, "a", "b"): 0o755, dir: 0o777 | os.ModeSticky,
	} {
		if st, err := os.Stat(path); err != nil || st.Mode() != want|os.ModeDir {
			t.Errorf("%s is %v, %v, want %v", path, st.Mode(), err, want)
		}
	}
}

// Read-only operations create no directory.
func TestLookingMakesNoDirectory(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string][]filelock.Option{"own": nil, "shared": {filelock.WithSharedDir()}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			top := filepath.Join(t.TempDir(), "a")
			for _, uid := range []int{os.Geteuid(), 1000} {
				store := filelock.New(filepath.Join(top, "b"), opts...).AsUser(uid)
				d := open(t, store, driver.Options{})
				defer func() { _ = d.Close() }()
				if keys := list(t, d); len(keys) > 0 {
					t.Errorf("listed %q", keys)
				}
				if claims := inspect(t, d, "k"); len(claims) > 0 {
					t.Errorf("shown as %+v", claims)
				}
				found, err := d.(driver.Checker).Check(ctx)
				if err != nil || len(found) != 3 {
					t.Errorf("Check = %+v, %v", found, err)
				}
				warns := len(found) == 3 && found[1].Level == driver.Warning && found[1].Fix != ""
				if warns != (name == "shared" && uid != 0) {
					t.Errorf("user %d: Check = %+v", uid, found)
				}
				clean(t, store, 0)
				if _, err := os.Stat(top); !errors.Is(err, os.ErrNotExist) {
					t.Errorf("user %d: a directory was made, %v", uid, err)
				}
			}
		})
	}
}

// Clean refuses a Store that Open refuses. A Store without a directory would clean the current one.
func TestCleanOfABadStore(t *testing.T) {
	dir := mkdir(t, 0o700)
	t.Chdir(dir)
	used(t, newDriver(t, dir), try("k"))
	for name, store := range map[string]*filelock.Store{"no directory": filelock.New(""), "an option is nil": filelock.New(dir, nil)} {
		if n, err := store.Clean(ctx, 0); err == nil || n != 0 {
			t.Errorf("%s: Clean = %d, %v", name, n, err)
		}
	}
	if _, err := os.Stat(filelock.Name("k")); err != nil {
		t.Error(err)
	}
}
