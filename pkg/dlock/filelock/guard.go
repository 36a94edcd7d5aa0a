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
	// errGuarded: others are at work with the lock, or one was stopped at it.
	errGuarded = errors.New("the lock is busy")
)

// How often a guard is tried, with pauses up to a millisecond: a quarter of a second
// for a call, and less for waiters, who come again.
const (
	callTries   = 250
	waiterTries = 5
)

// A guardError is about a guard, and so about all locks that share it, whatever other
// error is in it.
type guardError struct{ err error }

func (e *guardError) Error() string { return e.err.Error() }
func (e *guardError) Unwrap() error { return e.err }

// guard keeps others from coming to the holders of a lock, and from looking at them,
// until it is closed. They do that in microseconds, unless they are stopped.
func (dir *directory) guard(ctx context.Context, base string, tries int) (int, error) {
	for pause := 20 * time.Microsecond; ; pause = min(2*pause, time.Millisecond) {
		fd, err := dir.lockNew(guardName(base))
		if err == nil {
			return fd, nil
		}
		if !errors.Is(err, errLocked) {
			return -1, &guardError{err}
		}
		if tries--; tries == 0 {
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
			err = &fs.PathError{Op: "lock", Path: pathIn(dir.path, name), Err: ErrUnsafe}
		default:
			return fd, nil
		}
	}
	closeFile(fd)
	return -1, err
}
