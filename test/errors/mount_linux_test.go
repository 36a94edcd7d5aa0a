package errors_test

import (
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
		t.Skipf("a file system cannot be mounted: %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	return dir
}

func remountReadOnly(t *testing.T, dir string) {
	t.Helper()
	check(t, unix.Mount("none", dir, "tmpfs", unix.MS_REMOUNT|unix.MS_RDONLY, ""))
}
