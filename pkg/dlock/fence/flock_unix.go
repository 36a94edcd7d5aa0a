//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package fence

import (
	"os"
	"syscall"
)

const hasFlock = true

// noFollow rejects a symbolic link, and keeps a special file from blocking the open.
const noFollow = syscall.O_NOFOLLOW | syscall.O_NONBLOCK

// tryLock locks a file if that is possible at once.
func tryLock(f *os.File) (bool, error) {
	for {
		switch err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err {
		case nil:
			return true, nil
		case syscall.EWOULDBLOCK:
			return false, nil
		case syscall.EINTR:
		default:
			return false, os.NewSyscallError("flock", err)
		}
	}
}
