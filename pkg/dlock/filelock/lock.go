package filelock

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// How processes use the files of a lock:
//
//   - The holder locks the lock file exclusively, or several holders lock it shared.
//   - Each of several holders also has a slot, a file that it locks exclusively. So
//     permits can be counted, and it is visible which holders are alive.
//   - A process that joins other holders, examines them or removes files takes the guard
//     for some microseconds. An exclusive claim needs no guard: flock decides.
//   - A claim that is refused and waits writes a mark, the first line of the lock file.
//     Because of the mark, the holder closes the file when it leaves, which wakes every
//     waiter. Claims that came later leave the free lock to that waiter for a short time,
//     the constant courtesy.
//   - Without a mark, a holder that leaves keeps the file open as its process's spare:
//     opening and closing would cost more than all other steps.
//
// Only flock excludes. Marks and courtesy affect order and speed only; a mark that is lost
// or wrong costs milliseconds.

// An outcome is the result of an attempt to take a lock.
type outcome uint8

const (
	refused  outcome = iota // another claim has it
	deferred                // others go first, or all places are taken
	granted
)

// An attempt is for one claim. It may wait for the guard, but never for the lock.
type attempt struct {
	*fileDriver
	*claim
	dir   *directory
	tries int // for the guard
	now   time.Time
}

// attempt tries to take the lock for c. The files that it opens stay with c.
func (d *fileDriver) attempt(ctx context.Context, c *claim, tries int) (out outcome, err error) {
	a := attempt{fileDriver: d, claim: c, tries: tries, now: time.Now()}
	for range 100 {
		if a.dir, err = d.directory(a.now); err != nil {
			return refused, err
		}
		if c.mode == driver.Exclusive {
			out, err = a.alone(ctx)
		} else {
			out, err = a.together(ctx)
		}
		if err == nil && out == granted {
			return out, nil
		}
		c.unlock()
		if err == nil && out == refused && c.wait {
			var unheard bool
			if unheard, err = a.mark(); unheard {
				continue // the holder may have left before it could see the mark
			}
		}
		var named *fs.PathError
		if (errors.Is(err, ErrNotALock) || errors.Is(err, ErrInsecureDir)) && !errors.As(err, &named) { // the error must name the file
			err = fmt.Errorf("filelock: %s: %w", pathIn(a.dir.path, c.queue.base+lockSuffix), err)
		}
		if !errors.Is(err, errRemoved) && !errors.Is(err, fs.ErrNotExist) {
			return out, err
		}
		d.recheckPaths(c.queue) // another file counts now
		c.close()
	}
	if err != nil {
		err = fmt.Errorf("filelock: %s: again and again: %w", c.queue.base, err)
	}
	return refused, err
}

var errRemoved = errors.New("the file is removed")

// open opens the lock file. A claim keeps it open until it ends, because closing it wakes every
// waiter.
func (a *attempt) open() error {
	if a.main.fd >= 0 {
		return nil
	}
	if a.queue.spare.fd >= 0 {
		a.main, a.queue.spare = a.queue.spare, noFile
		return nil
	}
	if err := a.checkRival(); err != nil {
		return err
	}
	fd, err := openFile(a.dir, a.queue.base+lockSuffix)
	if err != nil {
		return err
	}
	if err := a.checkRival(); err != nil { // another process may have made both files at the same time
		closeFile(fd)
		return err
	}
	a.main = file{fd, a.now}
	return nil
}

// alone takes the lock if it is free.
func (a *attempt) alone(ctx context.Context) (outcome, error) {
	if a.yielding() {
		return deferred, nil
	}
	if err := a.open(); err != nil {
		return refused, err
	}
	free, err := lock(a.main.fd, exclusive)
	if err == nil && !free && !a.wait {
		free, err = a.surely(ctx)
	}
	if err != nil || !free {
		return refused, err
	}
	rec, size, err := a.readMain()
	if err != nil {
		return refused, err
	}
	if a.yields(&rec) {
		return deferred, nil
	}
	rec.begin(a.claim, a.now)
	a.token, a.since = rec.next(a.tokens, a.now), rec.since
	if err := a.write(a.main.fd, &rec, size, true); err != nil {
		return refused, err
	}
	return granted, nil
}

// surely tries once more under the guard, when no other process can be locking the file only to see
// whether it is locked. If the guard is not available, the first answer counts.
func (a *attempt) surely(ctx context.Context) (bool, error) {
	guard, err := a.dir.guard(ctx, a.queue.base, a.tries)
	var unusable *guardError // as in a directory where only the file may be written
	if errors.Is(err, errGuarded) || errors.As(err, &unusable) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer unlockAndClose(guard)
	return lock(a.main.fd, exclusive)
}

// together takes the lock with others of the same kind: all lock it shared, and each has a slot.
// The guard separates claims that arrive at the same time.
func (a *attempt) together(ctx context.Context) (outcome, error) {
	if a.yielding() {
		return deferred, nil
	}
	guard, err := a.dir.guard(ctx, a.queue.base, a.tries)
	if errors.Is(err, errGuarded) && a.phase == driver.Queued {
		return deferred, nil
	}
	if err != nil {
		return refused, err
	}
	defer unlockAndClose(guard)
	if err := a.open(); err != nil {
		return refused, err
	}
	a.now = time.Now()
	free, err := lock(a.main.fd, exclusive)
	if err == nil && !free {
		var joined bool
		if joined, err = lock(a.main.fd, shared); err == nil && !joined {
			return refused, nil
		}
	}
	if err != nil {
		return refused, err
	}
	return a.admit(ctx, free)
}

// admit finds a place among the holders. The caller has the guard and has locked the file.
func (a *attempt) admit(ctx context.Context, free bool) (outcome, error) {
	rec, size, err := a.readMain()
	if err != nil {
		return refused, err
	}
	switch {
	case free && a.yields(&rec):
		return deferred, nil
	case free, rec.mode == driver.Exclusive && a.mode == driver.Shared: // or a program that writes no record shares it
		rec.begin(a.claim, a.now)
	case rec.mode != a.mode || rec.limit != a.limit:
		return refused, nil
	case rec.awaited(a.arrived, a.now):
		return deferred, nil
	}
	a.token, a.since = rec.next(a.tokens, a.now), rec.since
	if err := a.takeSlot(ctx); err != nil || a.slot < 0 {
		return deferred, err
	}
	if err := a.write(a.main.fd, &rec, size, false); err != nil || !free {
		return granted, err
	}
	if kept, err := lock(a.main.fd, shared); err != nil || !kept { // flock unlocks in between, so another may have taken it
		return refused, err
	}
	return granted, nil
}

// takeSlot finds the first free slot and writes the holder's record there. If all slots are taken,
// a.slot stays negative. There may be many: any user of a shared directory can create slots.
func (a *attempt) takeSlot(ctx context.Context) error {
	slots := a.limit
	if a.mode == driver.Shared {
		slots = most
	}
	for n := range slots {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		fd, err := a.dir.lockNew(slotName(a.queue.base, n))
		if errors.Is(err, errLocked) {
			continue
		}
		if err != nil {
			return err
		}
		a.slot, a.slotNumber = fd, n
		was, size, err := read(fd)
		if err != nil {
			return failed("lock", pathIn(a.dir.path, slotName(a.queue.base, n)), err)
		}
		was.begin(a.claim, a.now)
		was.fence = a.token
		return a.write(fd, &was, size, true)
	}
	return nil
}

// yields reports whether a claim that may wait leaves a free lock to an earlier waiter, and starts
// the time for which it does.
func (a *attempt) yields(rec *record) bool {
	if !a.wait || !rec.awaited(a.arrived, a.now) {
		return false
	}
	if a.yieldUntil.IsZero() {
		a.yieldUntil = a.now.Add(courtesy)
	}
	return a.now.Before(a.yieldUntil)
}

// yielding is yields without touching the lock, once that time has started.
func (a *attempt) yielding() bool {
	if a.main.fd < 0 || !a.now.Before(a.yieldUntil) {
		return false
	}
	rec, _, err := read(a.main.fd)
	return err == nil && rec.awaited(a.arrived, a.now)
}
