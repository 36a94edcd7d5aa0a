package filelock_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
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

// A file is open to all users once it is created, also if it cannot be created without a name. A file
// that another process has created first is reported, and no descriptor is left.
func TestCreate(t *testing.T) {
	t.Parallel()
	for name, create := range map[string]func(dir, name string) error{"hidden": filelock.Create, "visible": filelock.CreateVisibly} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := mkdir(t, 0o777|os.ModeSticky)
			if err := create(dir, "f"); err != nil {
				t.Fatal(err)
			}
			if st, err := os.Stat(filepath.Join(dir, "f")); err != nil || st.Mode() != 0o666 {
				t.Errorf("%v, %v", st, err)
			}
			if err := create(dir, "f"); !errors.Is(err, syscall.EEXIST) {
				t.Errorf("again: %v", err)
			}
			if n := openIn(t, dir); n != 0 {
				t.Errorf("%d descriptors are left", n)
			}
		})
	}
}

func init() { roles["chrooted"] = chrooted }

// chrooted takes a lock where there is no /proc.
func chrooted(driver.Driver) {
	must(unix.Chroot(os.Getenv(childDir)))
	d, err := filelock.New("/locks", filelock.WithSharedDir()).Open(driver.Options{Logger: quiet})
	must(err)
	st, err := d.Acquire(ctx, try("k"))
	fmt.Println(st.Phase, err)
	must(d.Close())
}

// Without /proc, a file gets its name before it is open to all users.
func TestSharedFileWithoutProc(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("needs root: only root can change the root directory")
	}
	dir := t.TempDir()
	if said := strings.Join(run(t, dir, "chrooted", 1)[0], " "); said != "held <nil>" {
		t.Errorf("Acquire = %s", said)
	}
	if st, err := os.Stat(filepath.Join(dir, "locks", filelock.Name("k"))); err != nil || st.Mode() != 0o666 {
		t.Errorf("%v, %v", st, err)
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

// A new file that is still empty may be opened to all users soon, and is waited for. One that has
// content stays closed to this user, who is refused at once.
func TestClosedFileWithContent(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: only root can create a file as another user")
	}
	dir, err := os.MkdirTemp("", "locks")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	must(os.Chmod(dir, 0o777|os.ModeSticky))
	path := filepath.Join(dir, filelock.Name("k"))
	for text, waits := range map[string]bool{"": true, "precious": false} {
		synctest.Test(t, func(t *testing.T) {
			must(errors.Join(os.WriteFile(path, []byte(text), 0o600), os.Chtimes(path, time.Now(), time.Now())))
			began := time.Now()
			asUser(t, 1001, func() {
				d := open(t, filelock.New(dir, filelock.WithSharedDir()).AsUser(1001), driver.Options{})
				defer func() { _ = d.Close() }()
				if st, err := d.Acquire(ctx, try("k")); !errors.Is(err, os.ErrPermission) {
					t.Errorf("%q: Acquire = %v, %v", text, st.Phase, err)
				}
			})
			if took := time.Since(began); (took > 0) != waits {
				t.Errorf("%q: refused after %v", text, took)
			}
		})
	}
}
