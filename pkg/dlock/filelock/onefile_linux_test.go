package filelock_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/filelock"
	"github.com/ceyewan/genesis/pkg/xerrors"
)

// oneFile opens the one lock of a file.
func oneFile(t *testing.T, path string) driver.Driver {
	t.Helper()
	d := open(t, filelock.NewFile(path), driver.Options{})
	t.Cleanup(func() { _ = d.Close() })
	return d
}

// A file that flock(1) has made and locked is the lock, whatever characters its name has.
func TestNewFileSharesAFileWithFlock(t *testing.T) {
	t.Parallel()
	for name, key := range map[string]string{"myApp v2.lock": "myApp v2", "order%3a1.lock": "order:1"} {
		dir := t.TempDir()
		must(os.Chmod(dir, 0o700))
		path := filepath.Join(dir, name)
		flock := exec.CommandContext(t.Context(), "flock", path, "cat")
		in, err := flock.StdinPipe()
		must(err)
		must(flock.Start())
		d := oneFile(t, path)
		waitUntil(t, func() bool { return exec.CommandContext(t.Context(), "flock", "-n", path, "true").Run() != nil })
		file(t, d, try(key), driver.Gone)
		w := wait(key)
		file(t, d, w, driver.Queued)
		if claims, err := d.(driver.Admin).Inspect(ctx, key); err != nil || len(claims) != 1 || claims[0].Age != 0 {
			t.Errorf("%s: %v, %v hold it", name, claims, err)
		}
		must(in.Close())
		must(flock.Wait())
		granted(t, d, w.Ref)
		if err := exec.CommandContext(t.Context(), "flock", "-n", path, "true").Run(); err == nil {
			t.Errorf("%s: flock locks it as well", name)
		}
		if keys, _, err := d.(driver.Admin).List(ctx, "", "", 0); err != nil || len(keys) != 1 || keys[0] != key {
			t.Errorf("%s: List = %q, %v", name, keys, err)
		}
		release(t, d, w.Ref)
		must(exec.CommandContext(t.Context(), "flock", "-n", path, "true").Run())
	}
}

// A lock that is held is so although its guard cannot be used, as in a directory where only the file may be written.
func TestNewFileHeldWithoutGuard(t *testing.T) {
	t.Parallel()
	path := filepath.Join(mkdir(t, 0o700), "k.lock")
	file(t, oneFile(t, path), try("k"), driver.Held)
	_ = os.Remove(filepath.Join(filepath.Dir(path), filelock.GuardName("k")))
	must(os.Mkdir(filepath.Join(filepath.Dir(path), filelock.GuardName("k")), 0o700))
	file(t, oneFile(t, path), try("k"), driver.Gone)
}

// A Store of one file has one key.
func TestNewFileHasOneKey(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "locks")
	all := newDriver(t, dir)
	other := try("other")
	file(t, all, other, driver.Held)
	release(t, all, other.Ref)
	d := oneFile(t, filepath.Join(dir, "k.lock"))
	if _, err := d.Acquire(ctx, try("other")); !errors.Is(err, driver.ErrInvalidKey) {
		t.Errorf("another key: %v", err)
	}
	mine := try("k")
	file(t, d, mine, driver.Held)
	file(t, all, try("k"), driver.Gone) // a directory with this file has the same lock
	if claims, err := d.(driver.Admin).Inspect(ctx, "other"); err != nil || len(claims) != 0 {
		t.Errorf("Inspect of another key = %v, %v", claims, err)
	}
	release(t, d, mine.Ref)
	for store, want := range map[*filelock.Store]string{filelock.NewFile(filepath.Join(dir, "a%3ab.lock") + "/"): "a:b", filelock.New(dir): ""} {
		if key, ok := store.Key(); key != want || ok != (want != "") {
			t.Errorf("Key = %q, %t, want %q", key, ok, want)
		}
	}
}

// flock(1) that waits for a file does not notice that the file is removed, so Clean leaves it: the waiter
// and the next Client would both hold the lock.
func TestNewFileIsNotCleaned(t *testing.T) {
	t.Parallel()
	path := filepath.Join(mkdir(t, 0o700), "k.lock")
	store := filelock.NewFile(path)
	d := oneFile(t, path)
	r := try("k")
	file(t, d, r, driver.Held)
	before, err := os.Stat(path)
	must(err)
	release(t, d, r.Ref)
	clean(t, store, 0)
	if after, err := os.Stat(path); err != nil || !os.SameFile(before, after) {
		t.Errorf("the file is another one: %v", err)
	}
}

// A path that ends in a slash is the same lock.
func TestNewFileCleansItsPath(t *testing.T) {
	t.Parallel()
	path := filepath.Join(mkdir(t, 0o700), "k.lock")
	file(t, oneFile(t, path), try("k"), driver.Held)
	file(t, oneFile(t, path+"/"), try("k"), driver.Gone)
	file(t, oneFile(t, filepath.Dir(path)+"/./k.lock//"), try("k"), driver.Gone)
}

// Files that are something else are refused and stay as they are.
func TestNewFileRefuses(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	must(os.Chmod(dir, 0o700))
	for _, name := range []string{"k", "k.pid", ".lock", "k.lock.gz"} {
		if _, err := filelock.NewFile(filepath.Join(dir, name)).Open(driver.Options{Logger: quiet}); !errors.Is(err, xerrors.ErrInvalidConfig) {
			t.Errorf("%s: %v", name, err)
		}
	}
	path := filepath.Join(dir, "pid.lock")
	must(os.WriteFile(path, []byte("1234\n"), 0o600))
	if _, err := oneFile(t, path).Acquire(ctx, try("pid")); !errors.Is(err, filelock.ErrNotALock) {
		t.Errorf("a file with other content: %v", err)
	}
	if text, err := os.ReadFile(path); err != nil || string(text) != "1234\n" {
		t.Errorf("it is now %q, %v", text, err)
	}
}

func waitUntil(t *testing.T, done func() bool) {
	t.Helper()
	testenv.Eventually(t, time.Minute, "it happens", done)
}
