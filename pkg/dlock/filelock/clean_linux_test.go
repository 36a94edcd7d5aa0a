package filelock_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/filelock"
)

// used acquires and releases a lock, so that its file stays, and returns its token.
func used(t *testing.T, d driver.Driver, r driver.Request) int64 {
	t.Helper()
	st := file(t, d, r, driver.Held)
	release(t, d, r.Ref)
	return st.Token
}

// Files that only have the name of a slot are not removed with a lock.
func TestCleanLeavesOtherDataAlone(t *testing.T) {
	t.Parallel()
	for name, plant := range plants {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store := filelock.New(mkdir(t, 0o700))
			d := open(t, store, driver.Options{})
			defer func() { _ = d.Close() }()
			used(t, d, try("report"))
			paths := []string{filepath.Join(store.Path(), "report.0"), filepath.Join(store.Path(), "report.1"), filepath.Join(store.Path(), "other.7")}
			for _, p := range paths {
				if err := plant(p); err != nil {
					t.Fatal(err)
				}
			}
			clean(t, store, 1)
			for _, p := range paths {
				if _, err := os.Lstat(p); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// A lock that is taken after Clean has read the age of its file stays, and so do its tokens.
func TestCleanLeavesALockTakenMeanwhile(t *testing.T) {
	t.Parallel()
	store := filelock.New(mkdir(t, 0o700))
	d := open(t, store, driver.Options{})
	defer func() { _ = d.Close() }()
	path := filepath.Join(store.Path(), filelock.Name("k"))
	guard, err := os.OpenFile(filepath.Join(store.Path(), filelock.GuardName(filelock.BaseOf("k"))), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = guard.Close() }()
	for range 20 { // on a busy machine Clean may give the guard up
		used(t, d, try("k"))
		old := time.Now().Add(-48 * time.Hour)
		if err := errors.Join(os.Chtimes(path, old, old), unix.Flock(int(guard.Fd()), unix.LOCK_EX)); err != nil {
			t.Fatal(err)
		}
		opened := notified(t, guard.Name(), unix.IN_OPEN)
		removed, done := 0, make(chan error, 1)
		go func() {
			n, err := store.Clean(ctx, 24*time.Hour)
			removed = n
			done <- err
		}()
		opened() // Clean has found the lock, and waits for the guard
		first := used(t, d, driver.Request{Ref: ref("k"), Tokens: 1 << 30})
		if err := unix.Flock(int(guard.Fd()), unix.LOCK_UN); err != nil {
			t.Fatal(err)
		}
		if <-done != nil {
			continue
		}
		if next := used(t, d, try("k")); removed != 0 || next < first+1<<30 {
			t.Errorf("%d removed; tokens up to %d, then %d", removed, first+1<<30-1, next)
		}
		return
	}
	t.Error("Clean never got the guard")
}

// Clean reports a directory that is not safe, and removes nothing there.
func TestCleanOfUnsafeDirectory(t *testing.T) {
	t.Parallel()
	dir := mkdir(t, 0o700)
	used(t, newDriver(t, dir), try("k"))
	must(os.Chmod(dir, 0o777))
	n, err := filelock.New(dir).Clean(ctx, 0)
	if n != 0 || !errors.Is(err, filelock.ErrInsecureDir) || driver.ClassOf(err) != driver.Fatal {
		t.Errorf("Clean = %d, %v", n, err)
	}
	if _, err := os.Stat(filepath.Join(dir, filelock.Name("k"))); err != nil {
		t.Error(err)
	}
}

// Slots after a missing one are removed too, with their lock or after it.
func TestCleanOrphanSlots(t *testing.T) {
	t.Parallel()
	store := filelock.New(mkdir(t, 0o700))
	d := open(t, store, driver.Options{})
	defer func() { _ = d.Close() }()
	for _, key := range []string{"k", strings.Repeat("long ", 100)} {
		var all []driver.Request
		for range 4 {
			r := driver.Request{Ref: ref(key), Mode: driver.Shared}
			file(t, d, r, driver.Held)
			all = append(all, r)
		}
		for _, r := range all {
			release(t, d, r.Ref)
		}
		if err := os.Remove(filepath.Join(store.Path(), filelock.BaseOf(key)+".1")); err != nil {
			t.Fatal(err)
		}
	}
	clean(t, store, 2)
	left, err := filepath.Glob(filepath.Join(store.Path(), "[^.]*"))
	if err != nil || len(left) > 0 {
		t.Errorf("left: %q, %v", left, err)
	}
}

// A held slot stays, although its lock file is gone.
func TestCleanLeavesAHeldOrphan(t *testing.T) {
	t.Parallel()
	store := filelock.New(mkdir(t, 0o700))
	d := open(t, store, driver.Options{})
	defer func() { _ = d.Close() }()
	file(t, d, driver.Request{Ref: ref("k"), Mode: driver.Shared}, driver.Held)
	if err := os.Remove(filepath.Join(store.Path(), filelock.Name("k"))); err != nil {
		t.Fatal(err)
	}
	clean(t, store, 0)
	if _, err := os.Stat(filepath.Join(store.Path(), filelock.BaseOf("k")+".0")); err != nil {
		t.Error(err)
	}
}

// A guard that another user has planted does not hide locks: List and Inspect report it, and Clean
// continues with the locks of other guards.
func TestPlantedGuardIsReported(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"dangling", "directory", "pipe", "hard"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store := filelock.New(mkdir(t, 0o777|os.ModeSticky), filelock.WithSharedDir())
			d := open(t, store, driver.Options{})
			defer func() { _ = d.Close() }()
			used(t, d, try("other"))
			used(t, d, try("free"))
			file(t, d, try("held"), driver.Held)
			for _, key := range []string{"held", "free"} {
				if filelock.GuardName(key) == filelock.GuardName("other") {
					t.Fatal("the keys share a guard")
				}
				if err := plants[name](filepath.Join(store.Path(), filelock.GuardName(key))); err != nil {
					t.Fatal(err)
				}
			}
			guard := filelock.GuardName("held")
			if keys, _, err := d.(driver.Admin).List(ctx, "h", "", 0); err == nil || !strings.Contains(err.Error(), guard) {
				t.Errorf("List = %q, %v", keys, err)
			}
			if claims, err := d.(driver.Admin).Inspect(ctx, "held"); err == nil || !strings.Contains(err.Error(), guard) {
				t.Errorf("Inspect = %v, %v", claims, err)
			}
			if n, err := store.Clean(ctx, 0); n != 1 || err == nil || !strings.Contains(err.Error(), ".guard-") {
				t.Errorf("Clean = %d, %v", n, err)
			}
		})
	}
}

// A guard that another process keeps locked does not keep the files of other locks: Clean continues
// with them, and reports the guard.
func TestLockedGuardIsReported(t *testing.T) {
	t.Parallel()
	store := filelock.New(mkdir(t, 0o700))
	d := open(t, store, driver.Options{})
	defer func() { _ = d.Close() }()
	guards := map[string]*os.File{}
	for _, key := range []string{"a", "b", "c"} { // whatever their order in the directory is
		name := filelock.GuardName(key)
		f, err := os.OpenFile(filepath.Join(store.Path(), name), os.O_RDWR|os.O_CREATE, 0o600)
		if err == nil {
			err = unix.Flock(int(f.Fd()), unix.LOCK_EX)
		}
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = f.Close() }()
		guards[name] = f
	}
	guarded := 0
	for i := range 100 {
		key := string(rune('a'+i/10)) + string(rune('a'+i%10))
		used(t, d, try(key))
		if guards[filelock.GuardName(key)] != nil {
			guarded++
		}
	}
	n, err := store.Clean(ctx, 0)
	if n != 100-guarded || err == nil || !strings.Contains(err.Error(), "busy") || driver.ClassOf(err) != driver.Transient {
		t.Errorf("Clean removed %d of 100, %d of which are guarded: %v", n, guarded, err)
	}
	for _, f := range guards {
		_ = f.Close()
	}
	clean(t, store, guarded)
}

// A file on which another user has a lease cannot be opened, and is skipped.
func TestLeasedFile(t *testing.T) {
	t.Parallel()
	store := filelock.New(mkdir(t, 0o777|os.ModeSticky), filelock.WithSharedDir())
	d := open(t, store, driver.Options{})
	defer func() { _ = d.Close() }()
	file(t, d, try("held"), driver.Held)
	used(t, d, try("free"))
	f, err := os.OpenFile(filepath.Join(store.Path(), filelock.Name("leased")), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	if _, err := unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_WRLCK); err != nil {
		t.Skipf("the file system of the temporary directory has no leases (F_SETLEASE): %v", err)
	}
	if keys := list(t, d); !slices.Equal(keys, []string{"held"}) {
		t.Errorf("listed %q", keys)
	}
	clean(t, store, 1)
}
