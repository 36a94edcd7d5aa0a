package filelock

import (
	"context"
	"errors"
	"io/fs"
	"strconv"
	"strings"
	"time"
)

// Clean removes the files of locks that are free and were not taken for the time unused, and
// returns the number of these locks. It disturbs no holder and no waiter, but the next tokens of
// these locks start from the clock alone. Files that are not locks stay, and so do files that this
// user may not remove. A missing directory counts as clean. Locks whose guard cannot be used stay
// as well, and the error reports them.
//
// A program that waits for a file in flock(1) does not notice that the file was removed: it then holds
// a lock that excludes no Client. Do not clean a directory whose files such programs lock. The file of
// NewFile is meant for them, so Clean never removes it.
func (s *Store) Clean(ctx context.Context, unused time.Duration) (int, error) {
	path, err := s.where()
	if err != nil || s.only != nil {
		return 0, err
	}
	dir, err := s.openDirectory(path, false)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, classify(err)
	}
	defer closeFile(dir.fd)
	c := cleaning{directory: dir, unused: unused, busy: map[string]bool{}}
	err = dir.eachLock(ctx, func(base string) error {
		done, err := c.removeLock(ctx, base)
		if done {
			c.removed++
		}
		return c.tolerate(err)
	})
	if err == nil {
		err = dir.eachName(ctx, func(name string) error { return c.tolerate(c.removeOrphan(ctx, name)) })
	}
	if err == nil {
		err = c.guarded
	}
	return c.removed, classify(err)
}

// A cleaning is one run of Clean.
type cleaning struct {
	*directory
	unused  time.Duration
	removed int
	guarded error           // the first guard that could not be used
	busy    map[string]bool // guards that stayed locked, by name
}

// guard is that of the directory. A guard that stayed locked is tried only once for each further lock.
func (c *cleaning) guard(ctx context.Context, base string) (int, error) {
	tries := callTries
	if c.busy[guardName(base)] {
		tries = 1
	}
	fd, err := c.directory.guard(ctx, base, tries)
	c.busy[guardName(base)] = errors.Is(err, errGuarded)
	return fd, err
}

// tolerate returns the errors that end Clean. Clean skips files of other users. It also skips a
// guard of another user and one that stays locked, and reports that at its end.
func (c *cleaning) tolerate(err error) error {
	var g *guardError
	switch {
	case errors.As(err, &g) && isForeign(g.Unwrap()), errors.Is(err, errGuarded):
		if c.guarded == nil {
			c.guarded = err
		}
		return nil
	case isForeign(err):
		return nil
	}
	return err
}

// removeLock removes the files of a lock while it is locked and guarded. A process that has one of
// them open notices the removal and opens the next file.
func (c *cleaning) removeLock(ctx context.Context, base string) (bool, error) {
	main, err := openToRead(c.directory, base+lockSuffix)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	old, err := c.isOld(main)
	if err != nil || !old { // most are left without a guard
		closeFile(main)
		return false, err
	}
	guard, err := c.guard(ctx, base)
	if err != nil {
		closeFile(main)
		return false, err
	}
	defer unlockAndClose(guard)
	defer unlockAndClose(main) // before the guard: the next owner of the guard must not find it locked
	if ok, err := c.mayRemove(main, base+lockSuffix); err != nil || !ok {
		return false, err
	}
	if err := c.removeSlots(ctx, base); err != nil {
		return false, err
	}
	err = remove(c.directory, base+lockSuffix)
	return err == nil, err
}

// mayRemove locks a file and reports whether it is a record that was not written to for a long
// time. The time counts only once the file is locked: until then another process may take the lock.
// An empty file may be the lock of another program.
func (c *cleaning) mayRemove(fd int, name string) (bool, error) {
	if free, err := lock(fd, exclusive); err != nil || !free {
		return false, err
	}
	if old, err := c.isOld(fd); err != nil || !old {
		return false, err
	}
	if here, err := isAt(fd, pathIn(c.path, name)); err != nil || !here {
		return false, err
	}
	_, size, err := read(fd)
	if errors.Is(err, errRemoved) {
		return false, nil
	}
	return size > 0, err
}

func (c *cleaning) isOld(fd int) (bool, error) {
	written, err := modTime(fd)
	return time.Since(written) >= c.unused, err
}

// removeSlots removes the slots of a lock up to the first missing one; those after it are orphans
// once the lock is gone. Slots of other users in a sticky directory stay.
func (c *cleaning) removeSlots(ctx context.Context, base string) error {
	for n := range most {
		if err := ctx.Err(); err != nil {
			return err
		}
		err := c.removeSlot(slotName(base, n))
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil && !isForeign(err) {
			return err
		}
	}
	return nil
}

// removeSlot removes an unused slot, under the guard of its lock. Any file may have such a name
// (report.0), so it must be a record.
func (c *cleaning) removeSlot(name string) error {
	fd, err := openToRead(c.directory, name)
	if err != nil {
		return err
	}
	defer unlockAndClose(fd)
	if ok, err := c.mayRemove(fd, name); err != nil || !ok {
		return err
	}
	return remove(c.directory, name)
}

// removeOrphan removes a slot whose lock file is gone. Under the guard, no other process creates
// it.
func (c *cleaning) removeOrphan(ctx context.Context, name string) error {
	base, ok := baseOfSlot(name)
	if !ok {
		return nil
	}
	if there, err := c.has(base + lockSuffix); err != nil || there {
		return err
	}
	guard, err := c.guard(ctx, base)
	if err != nil {
		return err
	}
	defer unlockAndClose(guard)
	if there, err := c.has(base + lockSuffix); err != nil || there {
		return err
	}
	err = c.removeSlot(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// has reports whether a file, or anything else, has this name.
func (dir *directory) has(name string) (bool, error) {
	fd, err := openToRead(dir, name)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err == nil {
		closeFile(fd)
	}
	return true, err
}

// baseOfSlot is the inverse of slotName.
func baseOfSlot(name string) (base string, ok bool) {
	i := strings.LastIndexByte(name, '.')
	if i < 1 {
		return "", false
	}
	n, err := strconv.Atoi(name[i+1:])
	if err != nil || n < 0 || n >= most || slotName(name[:i], n) != name {
		return "", false
	}
	_, escaped := keyOf(name[:i])
	return name[:i], escaped || isHash(name[:i])
}
