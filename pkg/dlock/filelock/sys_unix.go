//go:build darwin || dragonfly || freebsd || linux

package filelock

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

const (
	supported = true
	hasModes  = true // of directories, which say who may write
)

// The ways to lock a file.
const (
	exclusive = unix.LOCK_EX
	shared    = unix.LOCK_SH
)

// openFlags reject symbolic links, and keep special files from blocking the open.
const openFlags = unix.O_NOFOLLOW | unix.O_NONBLOCK | unix.O_CLOEXEC

// openDir opens a directory that is not a symbolic link.
func openDir(path string) (int, error) {
	fd, err := retry(func() (int, error) { return unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|openFlags, 0) })
	if errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) || errors.Is(err, unix.EMLINK) {
		err = insecureLink(path)
	}
	return fd, failed("open", path, err)
}

// insecureLink is the error of a directory that is a symbolic link, or a file. It names the directory that a link leads to.
func insecureLink(path string) error {
	if _, err := os.Readlink(path); err != nil {
		return ErrInsecureDir // it is no link
	}
	target, err := filepath.EvalSymlinks(path)
	if err != nil {
		return ErrInsecureDir // it leads nowhere
	}
	return fmt.Errorf("%w: it is a symbolic link to %s", ErrInsecureDir, target)
}

// reopenDir opens a directory once more, to read it from the beginning.
func reopenDir(dir *directory) (*os.File, error) {
	fd, err := retry(func() (int, error) { return unix.Openat(dir.fd, ".", unix.O_RDONLY|unix.O_DIRECTORY|openFlags, 0) })
	if err != nil {
		return nil, failed("open", dir.path, err)
	}
	return os.NewFile(uintptr(fd), dir.path), nil
}

// A dirState describes the owner and the permissions of a directory.
type dirState struct {
	uid    int
	open   bool // others than its owner can write
	sticky bool
}

func lookAtDir(fd int) (dirState, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return dirState{}, err
	}
	return dirState{uid: int(st.Uid), open: st.Mode&0o022 != 0, sticky: st.Mode&unix.S_ISVTX != 0}, nil
}

// setMode sets the permissions of an open file, regardless of the umask.
func setMode(fd int, perm uint32) error { return unix.Fchmod(fd, perm) }

// openFile opens a file and creates it if needed. Existing files are opened without O_CREAT, which
// Linux may forbid for the files of other users in a sticky directory.
func openFile(dir *directory, name string) (fd int, err error) {
	for range 100 { // another process may remove it in between
		fd, err = openYoung(dir, name)
		if err != unix.ENOENT { //nolint:errorlint // system calls return it as it is
			break
		}
		fd, err = create(dir, name)
		if err != unix.EEXIST { //nolint:errorlint // system calls return it as it is
			break
		}
	}
	return fd, failed("open", pathIn(dir.path, name), err)
}

// createVisibly creates a file. In a shared directory, other users find it before they may open it,
// unless the umask is 0; see openYoung.
func createVisibly(dir *directory, name string) (int, error) {
	fd, err := retry(func() (int, error) {
		return unix.Openat(dir.fd, name, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL|openFlags, dir.perm)
	})
	if err == nil && dir.perm != privatePerm {
		_ = unix.Fchmod(fd, dir.perm) // whatever the umask is
	}
	return fd, err
}

// openYoung opens an existing file. A new file in a shared directory may not be open to other users
// yet.
func openYoung(dir *directory, name string) (fd int, err error) {
	for range youngTries {
		fd, err = retry(func() (int, error) { return unix.Openat(dir.fd, name, unix.O_RDWR|openFlags, 0) })
		if err != unix.EACCES || dir.perm == privatePerm || !isYoung(dir, name) { //nolint:errorlint // system calls return it as it is
			break
		}
		time.Sleep(time.Millisecond)
	}
	return fd, err
}

// youngTries limits how many milliseconds openYoung waits for a new file of another user.
const youngTries = 50

// isYoung reports whether a file is empty and less than a second old.
func isYoung(dir *directory, name string) bool {
	var st unix.Stat_t
	err := unix.Fstatat(dir.fd, name, &st, unix.AT_SYMLINK_NOFOLLOW)
	return err == nil && st.Size == 0 && st.Mode&unix.S_IFMT == unix.S_IFREG && time.Since(time.Unix(st.Mtim.Unix())).Abs() < time.Second
}

// openToRead opens an existing file.
func openToRead(dir *directory, name string) (int, error) {
	fd, err := retry(func() (int, error) { return unix.Openat(dir.fd, name, unix.O_RDONLY|openFlags, 0) })
	return fd, failed("open", pathIn(dir.path, name), err)
}

// A fileState is the state of an open file.
type fileState struct {
	size    int64
	removed bool
	odd     bool // no regular file, or one with other names
}

func fstat(fd int) (fileState, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return fileState{}, os.NewSyscallError("fstat", err)
	}
	return judge(st.Size, uint64(st.Nlink), uint32(st.Mode)), nil //nolint:unconvert // the types differ between systems
}

func judge(size int64, links uint64, mode uint32) fileState {
	return fileState{size: size, removed: links == 0, odd: links > 1 || mode&unix.S_IFMT != unix.S_IFREG}
}

// modTime returns when an open file was last written to.
func modTime(fd int) (time.Time, error) {
	var st unix.Stat_t
	err := unix.Fstat(fd, &st)
	return time.Unix(st.Mtim.Unix()), os.NewSyscallError("fstat", err)
}

// isAt reports whether an open file is the one at path.
func isAt(fd int, path string) (bool, error) {
	var ours, there unix.Stat_t
	if err := unix.Fstat(fd, &ours); err != nil {
		return false, err
	}
	err := unix.Lstat(path, &there)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
		return false, nil
	}
	return ours.Dev == there.Dev && ours.Ino == there.Ino, failed("stat", path, err)
}

// lock locks a file if that is possible at once. It also changes the kind of an existing lock.
func lock(fd int, how int) (bool, error) {
	for {
		switch err := unix.Flock(fd, how|unix.LOCK_NB); err {
		case nil:
			return true, nil
		case unix.EWOULDBLOCK:
			return false, nil
		case unix.EINTR:
		default:
			return false, os.NewSyscallError("flock", err)
		}
	}
}

func unlock(fd int) { _ = unix.Flock(fd, unix.LOCK_UN) }

func closeFile(fd int) { _ = unix.Close(fd) }

func readAt(fd int, p []byte, off int64) (int, error) {
	n, err := retry(func() (int, error) { return unix.Pread(fd, p, off) })
	return max(n, 0), os.NewSyscallError("read", err)
}

func writeAt(fd int, p []byte, off int64) error {
	n, err := retry(func() (int, error) { return unix.Pwrite(fd, p, off) })
	if err == nil && n < len(p) {
		err = io.ErrShortWrite
	}
	return os.NewSyscallError("write", err)
}

func truncate(fd int, size int64) { _ = unix.Ftruncate(fd, size) }

func remove(dir *directory, name string) error {
	return failed("remove", pathIn(dir.path, name), unix.Unlinkat(dir.fd, name, 0))
}

// duplicate returns another descriptor of the same open file, and so of its lock.
func duplicate(fd int, name string) (*os.File, error) {
	dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("fcntl", err)
	}
	return os.NewFile(uintptr(dup), name), nil
}

func retry(call func() (int, error)) (int, error) {
	for {
		if n, err := call(); err != unix.EINTR { //nolint:errorlint // system calls return it as it is
			return n, err
		}
	}
}
