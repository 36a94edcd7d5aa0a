package filelock_test

import (
	"bytes"
	"encoding/binary"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A happening is an inotify event of a file.
type happening struct {
	mask uint32
	name string // in the directory that is watched
}

// notified watches a path, and returns a function that waits for the next events.
func notified(t *testing.T, path string, mask uint32) func() []happening {
	t.Helper()
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), "inotify")
	t.Cleanup(func() { _ = f.Close() })
	if _, err := unix.InotifyAddWatch(fd, path, mask); err != nil {
		t.Fatal(err)
	}
	return func() (found []happening) {
		t.Helper()
		if err := f.SetReadDeadline(time.Now().Add(30 * time.Second)); err != nil {
			t.Fatal(err)
		}
		buf := make([]byte, 64<<10)
		n, err := f.Read(buf)
		if err != nil {
			t.Fatal(err)
		}
		for b := buf[:n]; len(b) >= unix.SizeofInotifyEvent; {
			size := unix.SizeofInotifyEvent + int(binary.NativeEndian.Uint32(b[12:]))
			name := bytes.TrimRight(b[unix.SizeofInotifyEvent:size], "\x00")
			found = append(found, happening{binary.NativeEndian.Uint32(b[4:]), string(name)})
			b = b[size:]
		}
		return found
	}
}
