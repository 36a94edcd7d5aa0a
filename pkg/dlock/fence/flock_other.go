//go:build !(darwin || dragonfly || freebsd || linux || netbsd || openbsd)

package fence

import (
	"errors"
	"os"
)

const (
	hasFlock = false
	noFollow = 0
)

// Without flock, nothing is written, and this is not called.
func tryLock(*os.File) (bool, error) { return false, errors.ErrUnsupported }
