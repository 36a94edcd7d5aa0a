package filelock

import (
	"errors"
	"io/fs"
	"testing"

	"golang.org/x/sys/windows"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// A full disk and the like are errors of the host, not of the lock.
func TestClassifyWindows(t *testing.T) {
	t.Parallel()
	for errno, class := range map[error]driver.Class{
		windows.ERROR_DISK_FULL: driver.Transient, windows.ERROR_HANDLE_DISK_FULL: driver.Transient, windows.ERROR_TOO_MANY_OPEN_FILES: driver.Transient,
		windows.ERROR_WRITE_PROTECT: driver.Fatal,
	} {
		err := classify(&fs.PathError{Op: "write", Path: "k.lock", Err: errno})
		if !errors.Is(err, driver.ErrNotReady) || !errors.Is(err, errno) || driver.ClassOf(err) != class {
			t.Errorf("%v: %v, class %v", errno, err, driver.ClassOf(err))
		}
	}
}
