//go:build !(darwin || dragonfly || freebsd || linux || windows)

package filelock

import (
	"os"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// Without flock, Open returns an error, and the other functions are never called.
const (
	supported = false
	hasModes  = false
)

const (
	exclusive = 0
	shared    = 0
)

type dirState struct {
	uid          int
	open, sticky bool
}

type fileState struct {
	size         int64
	removed, odd bool
}

func openDir(string) (int, error)                     { return -1, driver.ErrUnsupported }
func reopenDir(*directory) (*os.File, error)          { return nil, driver.ErrUnsupported }
func lookAtDir(int) (dirState, error)                 { return dirState{}, driver.ErrUnsupported }
func setMode(int, uint32) error                       { return driver.ErrUnsupported }
func openFile(*directory, string) (int, error)        { return -1, driver.ErrUnsupported }
func openToRead(*directory, string) (int, error)      { return -1, driver.ErrUnsupported }
func lookAt(int) (fileState, error)                   { return fileState{}, driver.ErrUnsupported }
func modTime(int) (time.Time, error)                  { return time.Time{}, driver.ErrUnsupported }
func isAt(int, string) (bool, error)                  { return false, driver.ErrUnsupported }
func lock(int, int) (bool, error)                     { return false, driver.ErrUnsupported }
func unlock(int)                                      {}
func closeFile(int)                                   {}
func readAt(int, []byte, int64) (int, error)          { return 0, driver.ErrUnsupported }
func writeAt(int, []byte, int64) error                { return driver.ErrUnsupported }
func truncate(int, int64)                             {}
func remove(*directory, string) error                 { return driver.ErrUnsupported }
func duplicate(int, string) (*os.File, error)         { return nil, driver.ErrUnsupported }
func fsType(int) (name string, local bool, err error) { return "", false, driver.ErrUnsupported }
