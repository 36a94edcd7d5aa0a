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

// A directory is open and was found safe. Files are opened relative to it, so that it stays the
// directory that was examined.
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

// openDirectory opens the directory. It creates a missing one if canMake is set.
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

// makeDirectory creates a missing directory, and reports whether its permissions must still be
// opened to all users. Other users can use a shared directory only if root owns it (see examine),
// so only root creates one.
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

// makeParent creates the missing parents of a shared directory. All users must be able to traverse
// them, whatever the umask is.
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

// notALink turns the error for a name that exists but leads nowhere, such as a dangling symbolic
// link, into one that a retry does not fix.
func notALink(path string, err error) error {
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("filelock: %s: %w: %w", path, ErrInsecureDir, err)
	}
	return err
}

// examine refuses a directory that other users could tamper with or that other hosts may share.
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
		return fmt.Errorf("%w: it belongs to user %d, and we are %d", ErrInsecureDir, st.uid, s.uid)
	case st.open && !s.shared:
		return fmt.Errorf("%w: others can write to it", ErrInsecureDir)
	case st.open && !st.sticky:
		return fmt.Errorf("%w: others can write to it, and it is not sticky", ErrInsecureDir)
	case !dir.local && !s.network:
		return fmt.Errorf("%w: %s", ErrNetworkFS, dir.fsName)
	}
	return nil
}

// directory opens the directory when it is first needed, and again when it is no longer at its
// path. It creates a missing one.
func (d *fileDriver) directory(now time.Time) (*directory, error) { return d.findDirectory(now, true) }

// existing is directory for read-only operations: it returns fs.ErrNotExist if the directory is
// missing.
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

// recheckPaths makes the driver look up everything again, for a queue whose file was not at its
// path.
func (d *fileDriver) recheckPaths(q *waitQueue) {
	if dir := d.dir.Load(); dir != nil {
		dir.seen.Store(int64(-stale))
	}
	if q.spare.fd >= 0 {
		closeFile(q.spare.fd)
		q.spare = noFile
	}
	d.unwatch(q)
}

// pathIn returns the path of a file in dir.
func pathIn(dir, name string) string { return dir + string(os.PathSeparator) + name }

func failed(op, path string, err error) error {
	if err == nil {
		return nil
	}
	return &fs.PathError{Op: op, Path: path, Err: err}
}

// namesAtATime is how many file names are in memory at a time: any user of a shared directory can
// create as many files as the disk allows.
const namesAtATime = 1024

// eachLock calls f with the base of each lock file's name, in no order.
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
