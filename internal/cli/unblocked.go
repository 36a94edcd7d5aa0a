package cli

import (
	"os"
	"sync"
	"time"
)

// An unblockedWriter writes in the background: a reader that has stopped to read, such as a pager,
// must not keep us from ending the command or from releasing the lock.
type unblockedWriter struct {
	out   *os.File
	texts chan []byte
	done  chan struct{}

	mu     sync.Mutex
	closed bool
}

// manyTexts is more than a run reports. What is beyond that is dropped.
const manyTexts = 1000

func newUnblockedWriter(out *os.File) *unblockedWriter {
	u := &unblockedWriter{out: out, texts: make(chan []byte, manyTexts), done: make(chan struct{})}
	go func() {
		defer close(u.done)
		for text := range u.texts {
			_, _ = out.Write(text) // it may be closed
		}
	}()
	return u
}

// Write implements io.Writer. What is written after flush is dropped.
func (u *unblockedWriter) Write(text []byte) (int, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.closed {
		return len(text), nil
	}
	select {
	case u.texts <- append([]byte(nil), text...):
	default:
	}
	return len(text), nil
}

// Stat tells a logger whether it writes to a terminal.
func (u *unblockedWriter) Stat() (os.FileInfo, error) { return u.out.Stat() }

// flush waits until everything is written, if that is not limited.
func (u *unblockedWriter) flush(limit <-chan time.Time) {
	u.mu.Lock()
	u.closed = true
	close(u.texts)
	u.mu.Unlock()
	select {
	case <-u.done:
	case <-limit:
	}
}
