package filelock

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// Check examines the directory. It does not create a missing one.
func (d *fileDriver) Check(context.Context) ([]driver.Finding, error) {
	dir, err := d.existing(time.Now())
	if errors.Is(err, fs.ErrNotExist) {
		dir, err = nil, nil
	}
	if err != nil {
		return nil, classify(err)
	}
	fsys, err := d.checkFS(dir)
	if err != nil {
		return nil, classify(err)
	}
	d.listen.Do(func() { d.signals = d.store.signals(d.log) })
	wakeUp := driver.Finding{Name: "wake-up", Detail: "waiters are notified when a file is closed"}
	if _, polls := d.signals.(poller); polls {
		wakeUp.Level, wakeUp.Detail = driver.Warning, fmt.Sprintf("waiters look every %v", lastPoll)
		wakeUp.Fix = "on Linux, raise fs.inotify.max_user_instances"
	}
	return []driver.Finding{fsys, d.checkAccess(dir), wakeUp}, nil
}

// checkFS checks the file system of the directory, or, if the directory is missing, the one on
// which it would be created.
func (d *fileDriver) checkFS(dir *directory) (driver.Finding, error) {
	found := driver.Finding{Name: "file-system"}
	path := d.path
	if dir == nil {
		path = existingParent(path)
		parent, err := os.Open(path)
		if err != nil {
			return found, err
		}
		defer func() { _ = parent.Close() }()
		dir = &directory{}
		dir.fsName, dir.local, err = d.store.fstype(int(parent.Fd()))
		if err != nil {
			return found, err
		}
	}
	found.Detail = path + " is on " + dir.fsName
	if !dir.local {
		found.Level, found.Fix = driver.Unsafe, "use a directory of this host alone"
	}
	return found, nil
}

// existingParent returns the nearest existing directory above path.
func existingParent(path string) string {
	for up := filepath.Dir(path); up != path; up = filepath.Dir(path) {
		path = up
		st, err := os.Stat(path)
		if err == nil && st.IsDir() {
			break
		}
	}
	return path
}

// checkAccess reports who can write to the directory.
func (d *fileDriver) checkAccess(dir *directory) driver.Finding {
	found := driver.Finding{Name: "directory"}
	switch {
	case dir == nil && d.store.shared && d.store.uid != 0:
		found.Level, found.Detail = driver.Warning, d.path+" is missing, and only root can make it"
		found.Fix = "as root: install -d -m 1777 " + d.path
	case dir == nil:
		found.Detail = d.path + " is missing, and is made when the first lock is taken"
	case !hasModes:
		found.Detail = "who can write to " + d.path + " is not examined on this system"
	case dir.state.open:
		found.Level, found.Detail = driver.Warning, "any user can take any lock in "+d.path
		found.Fix = "use a directory of your own"
	default:
		found.Detail = "only its owner can write to " + d.path
	}
	return found
}
