//go:build unix

package lockreader

import (
	"errors"
	"syscall"
)

// hasEnded reports whether there is no process with this ID.
func hasEnded(pid int) bool { return errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) }
