package cli

import "io"

// An unblockedWriter writes in the background: a reader that has stopped to read, such as a pager,
// must not keep us from ending the command or from releasing the lock.
type unblockedWriter struct {
	texts chan []byte
	done  chan struct{}
}

// manyTexts is more than a run reports. What is beyond that is dropped.
const manyTexts = 1000

func newUnblockedWriter(out io.Writer) *unblockedWriter {
	u := &unblockedWriter{make(chan []byte, manyTexts), make(chan struct{})}
	go func() {
		defer close(u.done)
		for text := range u.texts {
			_, _ = out.Write(text) // it may be closed
		}
	}()
	return u
}

// Write implements io.Writer.
func (u *unblockedWriter) Write(text []byte) (int, error) {
	select {
	case u.texts <- append([]byte(nil), text...):
	default:
	}
	return len(text), nil
}

// flush waits until everything is written. Nothing may be written any more.
func (u *unblockedWriter) flush() {
	close(u.texts)
	<-u.done
}
