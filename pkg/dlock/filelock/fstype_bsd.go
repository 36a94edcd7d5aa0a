//go:build darwin || dragonfly || freebsd

package filelock

import (
	"os"

	"golang.org/x/sys/unix"
)

// fsType returns the name of a directory's file system, and whether it belongs to this host alone.
func fsType(fd int) (name string, isLocal bool, err error) {
	var st unix.Statfs_t
	if err := unix.Fstatfs(fd, &st); err != nil {
		return "", false, os.NewSyscallError("fstatfs", err)
	}
	return unix.ByteSliceToString(st.Fstypename[:]), st.Flags&unix.MNT_LOCAL != 0, nil
}
