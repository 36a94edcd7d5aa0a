package fence

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// A seenFile stores the greatest token in decimal, with 19 digits and a newline. Its length never
// changes, so that a token is overwritten within one sector of the disk.
type seenFile struct {
	file *os.File
	dir  string
	new  bool
}

const seenSize = 20

var seenFormat = regexp.MustCompile(`^[0-9]{19}\n$`)

// How long to wait before the next attempt to lock.
const (
	lockPauseFirst = time.Millisecond
	lockPauseMost  = 50 * time.Millisecond
)

// openSeen opens and locks the file. A file that another process deleted or replaced meanwhile does
// not count.
func openSeen(ctx context.Context, path string, perm fs.FileMode) (*seenFile, error) {
	dir, err := os.Stat(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	mode := modeOfFence(perm, dir.Mode())
	for {
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|noFollow, mode)
		if err != nil {
			return nil, err
		}
		err = lockFile(ctx, f)
		if err != nil {
			return nil, errors.Join(err, f.Close())
		}
		ours, err1 := f.Stat()
		there, err2 := os.Lstat(path)
		switch {
		case err1 == nil && err2 == nil && os.SameFile(ours, there):
			widen(f, ours.Mode(), mode)
			return &seenFile{f, filepath.Dir(path), ours.Size() == 0}, nil
		case err1 != nil || (err2 != nil && !errors.Is(err2, fs.ErrNotExist)):
			return nil, errors.Join(err1, err2, f.Close())
		}
		_ = f.Close()
	}
}

// lockFile waits for the lock, which closing the file releases.
func lockFile(ctx context.Context, f *os.File) error {
	for pause := lockPauseFirst; ; pause = min(2*pause, lockPauseMost) {
		err := context.Cause(ctx)
		if err != nil {
			return fmt.Errorf("%s is locked by another writer: %w", f.Name(), err)
		}
		free, err := tryLock(f)
		if err != nil || free {
			return err
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
		}
	}
}

// read returns the greatest token, or 0 if there was none.
func (s *seenFile) read() (int64, error) {
	text, err := io.ReadAll(io.NewSectionReader(s.file, 0, seenSize+1))
	if err != nil || s.new {
		return 0, err
	}
	token, err := strconv.ParseInt(strings.TrimSuffix(string(text), "\n"), 10, 64)
	if err != nil || !seenFormat.Match(text) {
		return 0, fmt.Errorf("%w: %s: while no process works, write the greatest token of the lock to it with 19 digits, or delete it", ErrDamaged, s.file.Name())
	}
	return token, nil
}

func (s *seenFile) store(token int64) error {
	_, err := s.file.WriteAt(fmt.Appendf(nil, "%019d\n", token), 0)
	if err == nil {
		err = s.file.Sync()
	}
	if err == nil && s.new {
		err = syncDir(s.dir)
	}
	return err
}
