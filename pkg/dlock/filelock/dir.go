package filelock

import (
	"fmt"
	"os"
	"sync/atomic"
	"time"
)

const (
	privatePerm = 0o600
	sharedPerm  = 0o666
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

func (s *Store) openDirectory(path string) (*directory, error) {
	if err := os.MkdirAll(path, 0o700); err != nil {
		return nil, err
	}
	fd, err := openDir(path)
	if err != nil {
		return nil, err
	}
	dir := &directory{fd: fd, path: path, perm: privatePerm}
	if s.shared {
		dir.perm = sharedPerm
	}
	if err := s.examine(dir); err != nil {
		closeFile(fd)
		return nil, fmt.Errorf("filelock: %s: %w", path, err)
	}
	return dir, nil
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
// any more at its path.
func (d *fileDriver) directory(now time.Time) (*directory, error) {
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
	dir, err := d.store.openDirectory(d.path)
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

// names are those of all files.
func (dir *directory) names() ([]string, error) {
	f, err := reopenDir(dir)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	return f.Readdirnames(-1)
}
