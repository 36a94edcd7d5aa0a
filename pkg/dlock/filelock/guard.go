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

// guard keeps others from coming to the holders of a lock, and from looking at them,
// until it is closed. They do that in microseconds, unless they are stopped.
func (dir *directory) guard(ctx context.Context, base string, tries int) (int, error) {
	for pause := 20 * time.Microsecond; ; pause = min(2*pause, time.Millisecond) {
		fd, err := dir.lockNew(guardName(base))
		if !errors.Is(err, errLocked) {
			return fd, err
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
