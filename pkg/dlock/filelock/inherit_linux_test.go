package filelock_test

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/filelock"
)

// heir starts a process that has the descriptors of a lock, and does nothing else.
func heir(t *testing.T, store *filelock.Store, key string, token int64) *exec.Cmd {
	t.Helper()
	files, err := store.Descriptors(key, token)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "sleep", "60")
	cmd.ExtraFiles = files
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}
	return cmd
}

func stop(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // it was killed
}

// A child that has the descriptors keeps the lock when its parent is gone, until it is gone too.
func TestInherited(t *testing.T) {
	t.Parallel()
	for _, mode := range []driver.Mode{driver.Exclusive, driver.Shared, driver.Permit} {
		t.Run(mode.String(), func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "locks")
			store := filelock.New(dir)
			parent, other := open(t, store, driver.Options{Prefix: "p:"}), open(t, filelock.New(dir), driver.Options{Prefix: "p:"})
			defer func() { _ = other.Close() }()
			r := driver.Request{Ref: ref("k"), Mode: mode}
			if mode == driver.Permit {
				r.Limit = 1
			}
			cmd := heir(t, store, "k", file(t, parent, r, driver.Held).Token)
			if err := parent.Close(); err != nil { // as its end
				t.Fatal(err)
			}
			file(t, other, try("k"), driver.Gone)
			claims, err := other.(driver.Admin).Inspect(ctx, "k")
			if err != nil || len(claims) != 1 || claims[0].Mode != mode {
				t.Errorf("Inspect = %v, %v", claims, err)
			}
			w := wait("k")
			file(t, other, w, driver.Queued)
			stop(t, cmd)
			granted(t, other, w.Ref)
		})
	}
}

// An unlock takes effect although a child still has the descriptors, and waiters that watch the
// file are notified.
func TestUnlockOfInherited(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "locks")
	store := filelock.New(dir)
	d, other := open(t, store, driver.Options{}), newDriver(t, dir)
	defer func() { _ = d.Close() }()
	r := try("k")
	cmd := heir(t, store, "k", file(t, d, r, driver.Held).Token)
	closed := closings(t, filepath.Join(dir, filelock.Name("k")))
	release(t, d, r.Ref)
	if err := closed.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	if _, err := closed.Read(make([]byte, 4096)); err != nil {
		t.Errorf("waiters are not told: %v", err)
	}
	file(t, other, try("k"), driver.Held)
	stop(t, cmd)
}

// closings returns a file that becomes readable when a process closes the file at path.
func closings(t *testing.T, path string) *os.File {
	t.Helper()
	fd, err := unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), "inotify")
	t.Cleanup(func() { _ = f.Close() })
	if _, err := unix.InotifyAddWatch(fd, path, unix.IN_CLOSE_WRITE); err != nil {
		t.Fatal(err)
	}
	return f
}

func TestDescriptorsOfOthers(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "locks")
	store := filelock.New(dir)
	d := open(t, store, driver.Options{})
	defer func() { _ = d.Close() }()
	r := try("k")
	st := file(t, d, r, driver.Held)
	for key, token := range map[string]int64{"k": st.Token + 1, "else": st.Token} {
		if files, err := store.Descriptors(key, token); !errors.Is(err, filelock.ErrNotHeld) {
			t.Errorf("%v, %v", files, err)
		}
	}
	if files, err := filelock.New(dir).Descriptors("k", st.Token); !errors.Is(err, filelock.ErrNotHeld) {
		t.Errorf("%v, %v", files, err)
	}
	release(t, d, r.Ref)
	if files, err := store.Descriptors("k", st.Token); !errors.Is(err, filelock.ErrNotHeld) {
		t.Errorf("%v, %v", files, err)
	}
}

// No descriptor reaches a child unless requested.
func TestDescriptorsStayHere(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "locks")
	d := newDriver(t, dir)
	file(t, d, driver.Request{Ref: ref("k"), Mode: driver.Shared}, driver.Held)
	file(t, d, wait("k"), driver.Queued)
	out, err := exec.CommandContext(t.Context(), "ls", "-l", "/proc/self/fd").Output()
	if err != nil {
		t.Fatal(err)
	}
	if real, _ := filepath.EvalSymlinks(dir); real == "" || bytes.Contains(out, []byte(real)) || bytes.Contains(out, []byte("inotify")) {
		t.Errorf("a child has\n%s", out)
	}
}
