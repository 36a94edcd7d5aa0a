package filelock

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

const (
	privatePerm = 0o600
	sharedPerm  = 0o666
	forAllPerm  = 0o1777 // of a shared directory
)

// A directory is open and was found safe. Files are opened by way of it, so that it
// stays the one that was looked at.
type directory struct {
	fd     int
	path   string
	perm   uint32 // of new files
	fsName string
	local  bool
	state  dirState
	seen   atomic.Int64 // when it was last known to be at its path, from started on
}

var started = time.Now()

// openDirectory opens the directory, which is made if it is missing and canMake is set.
func (s *Store) openDirectory(path string, canMake bool) (*directory, error) {
	forAll := false
	if canMake {
		var err error
		forAll, err = s.makeDirectory(path)
		if err != nil {
			return nil, err
		}
	}
	fd, err := openDir(path)
	if err != nil {
		return nil, err
	}
	dir := &directory{fd: fd, path: path, perm: privatePerm}
	if s.shared {
		dir.perm = sharedPerm
	}
	if forAll {
		if err := setMode(fd, forAllPerm); err != nil {
			closeFile(fd)
			return nil, failed("chmod", path, err)
		}
	}
	if err := s.examine(dir); err != nil {
		closeFile(fd)
		return nil, fmt.Errorf("filelock: %s: %w", path, err)
	}
	return dir, nil
}

// makeDirectory makes a directory that is missing, and reports whether it is yet to be
// opened to all users. A shared one is useful to others only if it is root's (see examine),
// so nobody else makes it.
func (s *Store) makeDirectory(path string) (forAll bool, err error) {
	if !s.shared {
		return false, notALink(path, os.MkdirAll(path, 0o700))
	}
	_, err = os.Lstat(path)
	switch {
	case !errors.Is(err, fs.ErrNotExist):
		return false, err
	case s.uid != 0:
		return false, driver.Classify(fmt.Errorf("filelock: the shared directory %s is missing: root has to make it, as by install -d -m 1777 %s: %w",
			path, path, fs.ErrNotExist), driver.Fatal)
	}
	if err := makeParent(filepath.Dir(path)); err != nil {
		return false, notALink(path, err)
	}
	err = os.Mkdir(path, 0o700)
	if errors.Is(err, fs.ErrExist) { // another process was faster
		return false, nil
	}
	return err == nil, err
}

// makeParent makes the parents of a shared directory that are missing. All users have to get
// through them, whatever the umask is.
func makeParent(path string) error {
	st, err := os.Stat(path)
	if err == nil && st.IsDir() {
		return nil
	}
	if up := filepath.Dir(path); up != path {
		if err := makeParent(up); err != nil {
			return err
		}
	}
	err = os.Mkdir(path, 0o755)
	if err != nil {
		if st, again := os.Stat(path); again == nil && st.IsDir() { // another process was faster
			return nil
		}
		return err
	}
	fd, err := openDir(path)
	if err != nil {
		return err
	}
	defer closeFile(fd)
	return failed("chmod", path, setMode(fd, 0o755))
}

// notALink makes an error of a name that is there and leads nowhere, as a dangling symbolic
// link does, one that asking again does not cure.
func notALink(path string, err error) error {
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("filelock: %s: %w: %w", path, ErrUnsafe, err)
	}
	return err
}

// examine refuses a directory that others could tamper with, or share from
// elsewhere.
func (s *Store) examine(dir *directory) (err error) {
	if dir.state, err = lookAtDir(dir.fd); err != nil {
		return err
	}
	if dir.fsName, dir.local, err = s.fstype(dir.fd); err != nil {
		return err
	}
	st := &dir.state
	switch {
	case st.uid != s.uid && (!s.shared || st.uid != 0):
		return fmt.Errorf("%w: it belongs to user %d, and we are %d", ErrUnsafe, st.uid, s.uid)
	case st.open && !s.shared:
		return fmt.Errorf("%w: others can write to it", ErrUnsafe)
	case st.open && !st.sticky:
		return fmt.Errorf("%w: others can write to it, and it is not sticky", ErrUnsafe)
	case !dir.local && !s.network:
		return fmt.Errorf("%w: %s", ErrNetworkFS, dir.fsName)
	}
	return nil
}

// directory opens the directory when it is first needed, and again when it is not
// any more at its path. One that is missing is made.
func (d *fileDriver) directory(now time.Time) (*directory, error) { return d.findDirectory(now, true) }

// existing is directory for those who only look: fs.ErrNotExist if it is missing.
func (d *fileDriver) existing(now time.Time) (*directory, error) { return d.findDirectory(now, false) }

func (d *fileDriver) findDirectory(now time.Time, canMake bool) (*directory, error) {
	if dir := d.dir.Load(); dir != nil && now.Sub(started)-time.Duration(dir.seen.Load()) < stale {
		return dir, nil
	}
	d.dirMu.Lock()
	defer d.dirMu.Unlock()
	if dir := d.dir.Load(); dir != nil {
		if here, err := isAt(dir.fd, d.path); here || err != nil {
			dir.seen.Store(int64(now.Sub(started)))
			return dir, err
		}
	}
	dir, err := d.store.openDirectory(d.path, canMake)
	if err != nil {
		return nil, err
	}
	dir.seen.Store(int64(now.Sub(started)))
	d.dirs = append(d.dirs, dir) // closed by Close: others may use it until then
	d.dir.Store(dir)
	return dir, nil
}

// lostSight makes everything be looked up again, for a line whose file was not where it
// should be.
func (d *fileDriver) lostSight(l *line) {
	if dir := d.dir.Load(); dir != nil {
		dir.seen.Store(int64(-stale))
	}
	if l.spare.fd >= 0 {
		closeFile(l.spare.fd)
		l.spare = noFile
	}
	d.unwatch(l)
}

// pathIn is where a file should be.
func pathIn(dir, name string) string { return dir + string(os.PathSeparator) + name }

func failed(op, path string, err error) error {
	if err == nil {
		return nil
	}
	return &fs.PathError{Op: op, Path: path, Err: err}
}

// namesAtATime is how many names of files are in memory at a time: any user of a shared
// directory can make as many files as there is room for.
const namesAtATime = 1024

// eachLock calls f with what the names of lock files begin with, in no order.
func (dir *directory) eachLock(ctx context.Context, f func(base string) error) error {
	return dir.eachName(ctx, func(name string) error {
		base, isLock := strings.CutSuffix(name, lockSuffix)
		if !isLock {
			return nil
		}
		return f(base)
	})
}

// eachName calls f with the names of all files, in no order.
func (dir *directory) eachName(ctx context.Context, f func(name string) error) error {
	d, err := reopenDir(dir)
	if err != nil {
		return err
	}
	defer func() { _ = d.Close() }()
	for {
		names, err := d.Readdirnames(namesAtATime)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		for _, name := range names {
			if err := ctx.Err(); err != nil {
				return err
			}
			if err := f(name); err != nil {
				return err
			}
		}
	}
}
