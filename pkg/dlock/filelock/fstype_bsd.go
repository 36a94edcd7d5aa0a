//go:build darwin || dragonfly || freebsd

package filelock

import (
	"os"

	"golang.org/x/sys/unix"
)

// fsType names the file system of a directory and says whether it is of this host
// alone.
func fsType(fd int) (name string, isLocal bool, err error) {
	var st unix.Statfs_t
	if err := unix.Fstatfs(fd, &st); err != nil {
		return "", false, os.NewSyscallError("fstatfs", err)
	}
	return unix.ByteSliceToString(st.Fstypename[:]), st.Flags&unix.MNT_LOCAL != 0, nil
}
