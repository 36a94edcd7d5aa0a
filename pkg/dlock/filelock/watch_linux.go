package filelock

import (
	"encoding/binary"
	"log/slog"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// inotify reports files that were closed, also by processes that only read them, such as flock(1).
// Reading it occupies no thread.
type inotify struct {
	fd   int
	file *os.File // the same, for reading

	mu    sync.Mutex
	woken bool
}

// newSignals falls back to polling: a user may have few inotify instances, 128 by default.
func newSignals(log *slog.Logger) signals {
	fd, err := unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC)
	if err != nil {
		log.Warn("files are polled, since they cannot be watched", "error", err)
		return newPoller()
	}
	return &inotify{fd: fd, file: os.NewFile(uintptr(fd), "inotify")}
}

func (n *inotify) add(path string) (int, error) {
	return unix.InotifyAddWatch(n.fd, path, unix.IN_CLOSE|unix.IN_DONT_FOLLOW)
}

func (n *inotify) remove(watch int) {
	_, _ = unix.InotifyRmWatch(n.fd, uint32(watch)) // it is gone with its file, too
}

func (n *inotify) wait(until time.Time) (watches []int, all bool) {
	n.mu.Lock()
	if n.woken {
		until = time.Unix(1, 0)
	}
	n.woken = false
	err := n.file.SetReadDeadline(until)
	n.mu.Unlock()
	if err != nil {
		<-time.After(time.Until(until)) // never seen
		return nil, true
	}
	var buf [4096]byte
	size, _ := n.file.Read(buf[:]) // an error is the deadline, and else costs time only
	return parseEvents(buf[:size])
}

// parseEvents returns the watches in the events that were read, and whether events were lost.
func parseEvents(b []byte) (watches []int, lost bool) {
	for len(b) >= unix.SizeofInotifyEvent {
		watch := int(int32(binary.NativeEndian.Uint32(b)))
		mask, size := binary.NativeEndian.Uint32(b[4:]), binary.NativeEndian.Uint32(b[12:])
		watches = append(watches, watch)
		lost = lost || mask&unix.IN_Q_OVERFLOW != 0
		b = b[min(len(b), unix.SizeofInotifyEvent+int(size)):]
	}
	return watches, lost
}

func (n *inotify) wake() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.woken = true
	_ = n.file.SetReadDeadline(time.Unix(1, 0))
}

func (n *inotify) close() { _ = n.file.Close() }
