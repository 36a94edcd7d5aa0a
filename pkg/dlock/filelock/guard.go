package filelock

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"
)

var (
	errLocked = errors.New("locked")
	// errGuarded: other processes are working with the lock, or one was stopped while it did.
	errGuarded = errors.New("the lock is busy")
)

// How often a guard is tried, with pauses up to a millisecond: a quarter of a second for a call,
// and less for waiters, because they try again.
const (
	callTries   = 250
	waiterTries = 5
)

// A guardError concerns a guard, and so all locks that share it, whatever error it wraps.
type guardError struct{ err error }

func (e *guardError) Error() string { return e.err.Error() }
func (e *guardError) Unwrap() error { return e.err }

// guard keeps other processes from joining or examining the holders of a lock until it is closed.
// They do that within microseconds, unless they are stopped.
func (dir *directory) guard(ctx context.Context, base string, tries int) (int, error) {
	for pause := 20 * time.Microsecond; ; pause = min(2*pause, time.Millisecond) {
		fd, err := dir.lockNew(guardName(base))
		if err == nil {
			return fd, nil
		}
		if !errors.Is(err, errLocked) {
			return -1, &guardError{err}
		}
		tries--
		if tries == 0 {
			return -1, fmt.Errorf("filelock: %s: %w", base, errGuarded)
		}
		t := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			t.Stop()
			return -1, ctx.Err()
		case <-t.C:
		}
	}
}

// unlockAndClose closes a file that may be locked. Closing alone would leave it locked for as long as a
// child process that is just being started has it, too.
func unlockAndClose(fd int) {
	unlock(fd)
	closeFile(fd)
}

// lockNew opens a file and locks it, or returns errLocked.
func (dir *directory) lockNew(name string) (int, error) {
	fd, err := openFile(dir, name)
	if err != nil {
		return -1, err
	}
	ok, err := lock(fd, exclusive)
	if err == nil && !ok {
		err = errLocked
	}
	if err == nil {
		var st fileState
		st, err = lookAt(fd)
		switch {
		case err != nil:
		case st.removed:
			err = errLocked // the next attempt makes another
		case st.odd:
			err = &fs.PathError{Op: "lock", Path: pathIn(dir.path, name), Err: ErrInsecureDir}
		default:
			return fd, nil
		}
	}
	closeFile(fd)
	return -1, err
}
