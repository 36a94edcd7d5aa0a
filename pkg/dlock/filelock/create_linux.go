package filelock

import (
	"strconv"

	"golang.org/x/sys/unix"
)

// create makes a file. In a shared directory the file has no name until every user may open it.
// Otherwise other users would be refused meanwhile, or forever if this process dies in between.
func create(dir *directory, name string) (int, error) {
	if dir.perm == privatePerm {
		return createVisibly(dir, name)
	}
	fd, err := createHidden(dir, name)
	if err == nil || err == unix.EEXIST { //nolint:errorlint // system calls return it as it is
		return fd, err
	}
	return createVisibly(dir, name) // the file system cannot, or there is no /proc
}

func createHidden(dir *directory, name string) (int, error) {
	fd, err := retry(func() (int, error) {
		return unix.Openat(dir.fd, ".", unix.O_TMPFILE|unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, dir.perm)
	})
	if err != nil {
		return -1, err
	}
	err = unix.Fchmod(fd, dir.perm) // whatever the umask is
	if err == nil {
		err = unix.Linkat(unix.AT_FDCWD, "/proc/self/fd/"+strconv.Itoa(fd), dir.fd, name, unix.AT_SYMLINK_FOLLOW)
	}
	if err != nil {
		closeFile(fd)
		return -1, err
	}
	return fd, nil
}
