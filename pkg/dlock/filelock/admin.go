package filelock

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/internal/cursor"
)

// List reads the names of the files and checks which of them are locked. A cursor is the last key.
func (d *fileDriver) List(ctx context.Context, prefix, from string, limit int) ([]string, string, error) {
	last, err := cursor.Key(from)
	if err != nil {
		return nil, "", err
	}
	dir, err := d.existing(time.Now())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, "", nil
	}
	if err != nil {
		return nil, "", classify(err)
	}
	var keys []string
	for more := true; more; {
		var candidates []string
		candidates, more, err = d.candidates(ctx, dir, prefix, last)
		if err != nil {
			return nil, "", classify(err)
		}
		for _, key := range candidates {
			claims, err := dir.holders(ctx, d.store.baseOf(d.prefix+key))
			switch {
			case isForeign(err): // planted, or of another user: not a lock to list
			case err != nil:
				return nil, "", classify(err)
			case len(claims) == 0:
			case len(keys) == limit && limit > 0:
				return keys, cursor.After(keys[limit-1]), nil
			default:
				keys = append(keys, key)
			}
			last = key
		}
	}
	return keys, "", nil
}

// candidates returns the first keys after last that have files, in order, and whether there are
// more.
func (d *fileDriver) candidates(ctx context.Context, dir *directory, prefix, last string) (keys []string, more bool, err error) {
	keep := d.store.maxKeys
	err = dir.eachLock(ctx, func(base string) error {
		full, ok := d.store.keyOf(base)
		if d.store.only == nil && strings.HasPrefix(base, hashMark) {
			full, ok = dir.keyInside(base)
		}
		key, ours := strings.CutPrefix(full, d.prefix)
		if !ok || !ours || key <= last || !strings.HasPrefix(key, prefix) {
			return nil
		}
		keys = append(keys, key)
		if len(keys) == 2*keep {
			slices.Sort(keys)
			keys, more = keys[:keep], true
		}
		return nil
	})
	slices.Sort(keys)
	if len(keys) > keep {
		keys, more = keys[:keep], true
	}
	return keys, more, err
}

// keyInside returns the key of a file with a hashed name.
func (dir *directory) keyInside(base string) (string, bool) {
	fd, err := openToRead(dir, base+lockSuffix)
	if err != nil {
		return "", false
	}
	defer closeFile(fd)
	_, h, err := readWhole(fd)
	return h.Key, err == nil && len(h.Key) <= maxName && baseOf(h.Key) == base
}

// Inspect returns the holders. Only the waiters' own processes know of the waiters.
func (d *fileDriver) Inspect(ctx context.Context, key string) ([]driver.Claim, error) {
	if !d.store.has(d.store.baseOf(d.prefix + key)) {
		return nil, nil
	}
	dir, err := d.existing(time.Now())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, classify(err)
	}
	claims, err := dir.holders(ctx, d.store.baseOf(d.prefix+key))
	return claims, classify(err)
}

// Evict is unsupported: only the kernel or the holder's process can end a lock.
func (d *fileDriver) Evict(context.Context, string, string, int64) (driver.State, error) {
	return driver.State{}, fmt.Errorf("%w: end the process that holds the lock", driver.ErrUnsupported)
}

// holders finds the holders of a lock by trying to lock its files for a moment. Under the guard,
// this does not disturb other processes.
func (dir *directory) holders(ctx context.Context, base string) ([]driver.Claim, error) {
	main, err := openToRead(dir, base+lockSuffix)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer closeFile(main)
	guard, err := dir.guard(ctx, base, callTries)
	if err != nil {
		return nil, err
	}
	defer unlockAndClose(guard)
	alone, err := isLocked(main)
	if err != nil {
		return nil, err
	}
	rec, h, err := readWhole(main)
	switch {
	case err != nil:
		return nil, failed("read", pathIn(dir.path, base+lockSuffix), err)
	case alone && rec.mode == driver.Exclusive && rec.since > 0:
		return []driver.Claim{show(&rec, &h)}, nil
	case alone: // by a program that writes no record
		return []driver.Claim{{Phase: driver.Held}}, nil
	case rec.mode == driver.Exclusive:
		return nil, nil
	}
	return dir.slotHolders(ctx, base)
}

// slotHolders returns the claims that hold the lock together, in the order of their tokens. Slots
// are created one after another, so the first missing slot is the end.
func (dir *directory) slotHolders(ctx context.Context, base string) ([]driver.Claim, error) {
	var claims []driver.Claim
	for n := range most {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		fd, err := openToRead(dir, slotName(base, n))
		if errors.Is(err, fs.ErrNotExist) {
			break
		}
		if err == nil {
			claims, err = addHolder(claims, fd)
			closeFile(fd)
		}
		if err != nil && !isForeign(err) {
			return nil, err
		}
	}
	slices.SortFunc(claims, func(a, b driver.Claim) int { return cmp.Compare(a.Token, b.Token) })
	return claims, nil
}

// addHolder adds the holder of a slot, if it has one.
func addHolder(claims []driver.Claim, slot int) ([]driver.Claim, error) {
	taken, err := isLocked(slot)
	if err != nil || !taken {
		return claims, err
	}
	rec, h, err := readWhole(slot)
	if err != nil {
		return claims, err
	}
	return append(claims, show(&rec, &h)), nil
}

func isLocked(fd int) (bool, error) {
	free, err := lock(fd, shared)
	if free {
		unlock(fd)
	}
	return !free, err
}

func show(rec *record, h *holder) driver.Claim {
	c := driver.Claim{
		ID: h.ID, Phase: driver.Held, Mode: rec.mode, Limit: rec.limit, Token: h.Token, Info: h.Info,
		Age: max(0, time.Since(time.UnixMicro(rec.since))),
	}
	if rec.mode == driver.Exclusive && rec.fence > h.Token {
		c.LastToken = rec.fence
	}
	return c
}

// readWhole reads a complete record. If a holder is just writing it, it is read again. A holder
// that died while writing has left no name. Data after maxRecord is not part of a record.
func readWhole(fd int) (rec record, h holder, err error) {
	st, err := lookAt(fd)
	switch {
	case err != nil:
		return rec, h, err
	case st.odd:
		return rec, h, ErrInsecureDir
	}
	buf := make([]byte, maxRecord)
	for range 10 {
		n, err := readAt(fd, buf, 0)
		if err != nil {
			return rec, h, err
		}
		if rec, err = parse(buf[:n]); err != nil || n <= headSize {
			return rec, h, err
		}
		line, _, _ := bytes.Cut(buf[headSize:n], []byte("\n"))
		if err = json.Unmarshal(line, &h); err == nil {
			return rec, h, nil
		}
	}
	return rec, holder{}, nil
}
