package errors_test

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// mountTmpfs mounts a small file system, where that is allowed: for root, and not in every
// container.
func mountTmpfs(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	err := unix.Mount("none", dir, "tmpfs", 0, "size=16k,mode=0700")
	if err != nil {
		t.Skipf("needs the right to mount a tmpfs, which root has outside of most containers: %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	return dir
}

// noRights is a directory that we may not make. Root may not make one in /sys alone, unless
// that is read-only, as in many containers.
func noRights(t *testing.T) string {
	t.Helper()
	if os.Geteuid() != 0 {
		dir := t.TempDir()
		check(t, os.Chmod(dir, 0o500))
		return filepath.Join(dir, "locks")
	}
	var st unix.Statfs_t
	check(t, unix.Statfs("/sys", &st))
	if st.Flags&unix.ST_RDONLY != 0 {
		t.Skip("root is denied a directory only in a writable /sys, and /sys is read-only here; run it as another user")
	}
	return "/sys/dlock"
}

func remountReadOnly(t *testing.T, dir string) {
	t.Helper()
	check(t, unix.Mount("none", dir, "tmpfs", unix.MS_REMOUNT|unix.MS_RDONLY, ""))
}
