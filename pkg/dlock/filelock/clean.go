package filelock

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Clean removes the files of locks that nobody has and nobody has taken for a while,
// and returns how many locks they were of. It disturbs nobody, but their next tokens
// count from the clock alone.
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
	names, err := dir.names()
	if err != nil {
		return 0, err
	}
	slots := map[string][]string{}
	for _, name := range names {
		base, number, _ := strings.Cut(name, ".")
		if _, err := strconv.ParseUint(number, 10, 31); err == nil {
			slots[base] = append(slots[base], name)
		}
	}
	removed := 0
	for _, name := range names {
		base, isLock := strings.CutSuffix(name, lockSuffix)
		if st, err := os.Lstat(filepath.Join(path, name)); !isLock || err != nil || time.Since(st.ModTime()) < unused {
			continue
		}
		done, err := dir.removeLock(ctx, base, slots[base])
		if err != nil {
			return removed, classify(err)
		}
		if done {
			removed++
		}
	}
	return removed, nil
}

// removeLock removes the files of a lock while it is locked and guarded. Whoever has
// one of them open finds it removed, and opens the next.
func (dir *directory) removeLock(ctx context.Context, base string, slots []string) (bool, error) {
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
	if errors.Is(err, errRemoved) || errors.Is(err, ErrNotALock) || errors.Is(err, ErrUnsafe) {
		return false, nil
	}
	if err != nil || size == 0 { // an empty file may be the lock of another program
		return false, err
	}
	for _, name := range append(slots, base+lockSuffix) {
		if err := remove(dir, name); err != nil {
			return false, err
		}
	}
	return true, nil
}
