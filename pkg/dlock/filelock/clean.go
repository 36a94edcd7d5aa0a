package filelock

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// Clean removes the files of locks that nobody has and nobody has taken for a while,
// and returns how many locks they were of. It disturbs nobody, but their next tokens
// count from the clock alone. What is no lock stays, and so do files that this user may
// not remove.
func (s *Store) Clean(ctx context.Context, unused time.Duration) (int, error) {
	path, err := filepath.Abs(s.path)
	if err != nil {
		return 0, err
	}
	dir, err := s.openDirectory(path)
	if err != nil {
		return 0, classify(err)
	}
	defer closeFile(dir.fd)
	removed := 0
	err = dir.eachLock(ctx, func(base string) error {
		st, err := os.Lstat(pathIn(path, base+lockSuffix))
		if err != nil || time.Since(st.ModTime()) < unused {
			return nil //nolint:nilerr // what cannot be looked at stays
		}
		done, err := dir.removeLock(ctx, base)
		if done {
			removed++
		}
		if isForeign(err) {
			return nil
		}
		return err
	})
	return removed, classify(err)
}

// removeLock removes the files of a lock while it is locked and guarded. Whoever has
// one of them open finds it removed, and opens the next.
func (dir *directory) removeLock(ctx context.Context, base string) (bool, error) {
	guard, err := dir.guard(ctx, base, callTries)
	if err != nil {
		return false, err
	}
	defer closeFile(guard)
	main, err := openToRead(dir, base+lockSuffix)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer closeFile(main)
	if free, err := lock(main, exclusive); err != nil || !free {
		return false, err
	}
	_, size, err := read(main)
	if errors.Is(err, errRemoved) {
		return false, nil
	}
	if err != nil || size == 0 { // an empty file may be the lock of another program
		return false, err
	}
	if err := dir.removeSlots(ctx, base); err != nil {
		return false, err
	}
	err = remove(dir, base+lockSuffix)
	return err == nil, err
}

// removeSlots removes the slots of a lock. They are made one after the other, so the first
// that is missing is the end. Those of other users in a sticky directory stay.
func (dir *directory) removeSlots(ctx context.Context, base string) error {
	for n := range most {
		if err := ctx.Err(); err != nil {
			return err
		}
		err := remove(dir, slotName(base, n))
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil && !isForeign(err) {
			return err
		}
	}
	return nil
}
