package filelock_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/filelock"
)

// lockFile makes the file of the lock "k", with this content.
func lockFile(t *testing.T, text []byte) (dir, path string) {
	t.Helper()
	dir = mkdir(t, 0o700)
	path = filepath.Join(dir, filelock.Name("k"))
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return dir, path
}

// flocked locks a file as flock(1) does, and returns the open file, whose Close unlocks it.
func flocked(t *testing.T, path string) *os.File {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		t.Fatal(err)
	}
	return f
}

// A power failure may leave a file of zeros. It is a lock like any other, also after a waiter has
// written its mark before the zeros.
func TestFileOfZeros(t *testing.T) {
	t.Parallel()
	for _, marked := range []bool{false, true} {
		dir, path := lockFile(t, make([]byte, 4096))
		a, b := newDriver(t, dir), newDriver(t, dir)
		if marked {
			lock, w := flocked(t, path), wait("k")
			file(t, b, w, driver.Queued)
			release(t, b, w.Ref)
			// Closing it is not enough: a process that is being started has a copy of the descriptor for a moment.
			if err := unix.Flock(int(lock.Fd()), unix.LOCK_UN); err != nil {
				t.Fatal(err)
			}
		}
		held, w := driver.Request{Ref: ref("k"), Info: driver.Info{Owner: "a"}}, wait("k")
		first := file(t, a, held, driver.Held)
		if claims := inspect(t, b, "k"); len(claims) != 1 || claims[0].Info.Owner != "a" {
			t.Errorf("shown as %+v", claims)
		}
		file(t, b, w, driver.Queued)
		release(t, a, held.Ref)
		if next := granted(t, b, w.Ref); next.Token <= first.Token {
			t.Errorf("token %d after %d", next.Token, first.Token)
		}
	}
}

// When the clock is set back, the holder's record is from the future. The holder still learns that
// a claim waits, and the waiter does not keep polling.
func TestClockSetBack(t *testing.T) {
	t.Parallel()
	dir, path := lockFile(t, filelock.Text(time.Now().Add(time.Hour), time.Now().Add(time.Hour).UnixMicro()))
	holder := flocked(t, path)
	d := newDriver(t, dir)
	w := wait("k")
	file(t, d, w, driver.Queued)
	if text, err := os.ReadFile(path); err != nil || !filelock.Marked(text) {
		t.Errorf("the holder of %q is not told, %v", text, err)
	}
	if err := holder.Close(); err != nil {
		t.Fatal(err)
	}
	if st := granted(t, d, w.Ref); st.Token <= time.Now().Add(50*time.Minute).UnixMicro() {
		t.Errorf("token %d goes back", st.Token)
	}
}

// Tokens that have reached their maximum do not start again.
func TestLastToken(t *testing.T) {
	t.Parallel()
	dir, _ := lockFile(t, filelock.Text(time.Now(), 1<<62-1))
	d := newDriver(t, dir)
	last := int64(1<<62 - 1)
	for range 3 {
		r := try("k")
		st, err := d.Acquire(ctx, r)
		if errors.Is(err, filelock.ErrNotALock) && driver.ClassOf(err) == driver.Fatal && last > 1<<62-1 {
			return
		}
		if err != nil || st.Token <= last {
			t.Fatalf("token %d after %d, %v", st.Token, last, err)
		}
		last = st.Token
		release(t, d, r.Ref)
	}
	t.Error("there is no end")
}
