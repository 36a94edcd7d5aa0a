package filelock_test

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/filelock"
)

// A file in a shared directory is open to all users as soon as it has its name: another user who
// finds it is not refused, and a process that dies leaves no file that is closed to others.
func TestSharedFileIsNeverClosedToOthers(t *testing.T) {
	t.Parallel()
	dir := mkdir(t, 0o777|os.ModeSticky)
	happened := notified(t, dir, unix.IN_CREATE|unix.IN_ATTRIB)
	d := newDriver(t, dir, filelock.WithSharedDir())
	for _, r := range []driver.Request{try("k"), {Ref: ref("s"), Mode: driver.Shared}} {
		file(t, d, r, driver.Held)
	}
	if err := os.WriteFile(filepath.Join(dir, "last"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	made := map[string]bool{}
	for !made["last"] {
		for _, h := range happened() {
			if h.mask&unix.IN_CREATE != 0 {
				made[h.name] = true
			} else if made[h.name] {
				t.Errorf("%s was changed after it was made", h.name)
			}
		}
	}
	for _, name := range []string{filelock.Name("k"), filelock.Name("s"), filelock.BaseOf("s") + ".0"} {
		if st, err := os.Stat(filepath.Join(dir, name)); !made[name] || err != nil || st.Mode() != 0o666 {
			t.Errorf("%s: made %v, %v, %v", name, made[name], st, err)
		}
	}
}

// If a file cannot be created without a name, it is open to all users once it is created.
func TestCreateVisibly(t *testing.T) {
	t.Parallel()
	dir := mkdir(t, 0o777|os.ModeSticky)
	if err := filelock.CreateVisibly(dir, "f"); err != nil {
		t.Fatal(err)
	}
	if st, err := os.Stat(filepath.Join(dir, "f")); err != nil || st.Mode() != 0o666 {
		t.Errorf("%v, %v", st, err)
	}
	if err := filelock.CreateVisibly(dir, "f"); !errors.Is(err, syscall.EEXIST) {
		t.Errorf("again: %v", err)
	}
}

// asUser runs f with the permissions of another user, on a separate thread.
func asUser(t *testing.T, uid int, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		_ = unix.Setfsuid(uid)
		f()
	}()
	<-done
}

// A new file of another user that is not open yet is waited for; an old one is not.
func TestFileIsAboutToBeOpened(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: only root can create a file as another user")
	}
	dir, err := os.MkdirTemp("", "locks")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	if err := os.Chmod(dir, 0o777|os.ModeSticky); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, filelock.Name("k"))
	attempt := func() (err error) {
		asUser(t, 1001, func() {
			d := open(t, filelock.New(dir, filelock.WithSharedDir()).AsUser(1001), driver.Options{})
			defer func() { _ = d.Close() }()
			_, err = d.Acquire(ctx, try("k"))
		})
		return err
	}
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	testenv.StartMetronome(t)
	for stalled := true; stalled; {
		began := time.Now()
		if err = errors.Join(os.Chmod(path, 0o600), os.Truncate(path, 0), os.Chtimes(path, time.Now(), time.Now())); err != nil {
			t.Fatal(err)
		}
		opened := make(chan struct{})
		time.AfterFunc(5*time.Millisecond, func() {
			_ = os.Chmod(path, 0o666)
			close(opened)
		})
		err = attempt()
		<-opened
		stalled = err != nil && testenv.Stalled(t, began, 50*time.Millisecond) // an attempt waits no longer
	}
	if err != nil {
		t.Errorf("a file that was opened to all meanwhile: %v", err)
	}
	old := time.Now().Add(-time.Hour)
	if err := errors.Join(os.Truncate(path, 0), os.Chmod(path, 0o600), os.Chtimes(path, old, old)); err != nil {
		t.Fatal(err)
	}
	if err := attempt(); !errors.Is(err, os.ErrPermission) || driver.ClassOf(err) != driver.Fatal {
		t.Errorf("an old file: %v", err)
	}
}
