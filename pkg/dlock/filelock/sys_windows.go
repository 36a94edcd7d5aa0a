package filelock

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/windows"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

const (
	supported = true
	hasModes  = false // directories have access lists, which are not examined
)

// systemKinds and systemFatal are the errors of Windows that have the meaning of an errno.
var (
	systemKinds = []kind{
		{windows.ERROR_DISK_FULL, driver.ErrNotReady},
		{windows.ERROR_HANDLE_DISK_FULL, driver.ErrNotReady},
		{windows.ERROR_DISK_QUOTA_EXCEEDED, driver.ErrNotReady},
		{windows.ERROR_TOO_MANY_OPEN_FILES, driver.ErrNotReady},
		{windows.ERROR_IO_DEVICE, driver.ErrNotReady},
		{windows.ERROR_WRITE_PROTECT, driver.ErrNotReady},
	}
	systemFatal = []error{windows.ERROR_WRITE_PROTECT}
)

// The ways to lock a file.
const (
	exclusive = windows.LOCKFILE_EXCLUSIVE_LOCK
	shared    = 0
)

// The lock is on one byte far behind the content. A lock forbids other processes to read and
// write what it covers, but they must be able to read who holds the lock.
func lockedByte() *windows.Overlapped { return &windows.Overlapped{OffsetHigh: 1 << 30} }

const (
	readOnly  = windows.GENERIC_READ
	readWrite = windows.GENERIC_READ | windows.GENERIC_WRITE
	// anyShare lets other processes open a file, and Clean remove it.
	anyShare = windows.FILE_SHARE_READ | windows.FILE_SHARE_WRITE | windows.FILE_SHARE_DELETE
)

// open opens a file or a directory. A symbolic link is opened itself, so that lookAt can refuse it.
func open(path string, access, how uint32) (int, error) {
	name, err := windows.UTF16PtrFromString(path)
	if err != nil {
		return -1, failed("open", path, err)
	}
	h, err := windows.CreateFile(name, access, anyShare, nil, how,
		windows.FILE_ATTRIBUTE_NORMAL|windows.FILE_FLAG_BACKUP_SEMANTICS|windows.FILE_FLAG_OPEN_REPARSE_POINT, 0)
	if err != nil {
		return -1, failed("open", path, err)
	}
	return int(h), nil
}

// openDir opens a directory that is not a symbolic link.
func openDir(path string) (int, error) {
	fd, err := open(path, readOnly, windows.OPEN_EXISTING)
	if err != nil {
		return -1, err
	}
	var info windows.ByHandleFileInformation
	err = windows.GetFileInformationByHandle(windows.Handle(fd), &info)
	if err == nil && info.FileAttributes&(windows.FILE_ATTRIBUTE_DIRECTORY|windows.FILE_ATTRIBUTE_REPARSE_POINT) != windows.FILE_ATTRIBUTE_DIRECTORY {
		err = ErrInsecureDir
	}
	if err != nil {
		closeFile(fd)
		return -1, failed("open", path, err)
	}
	return fd, nil
}

// reopenDir opens a directory once more, to read it from the beginning.
func reopenDir(dir *directory) (*os.File, error) { return os.Open(dir.path) }

// A dirState describes the owner of a directory. Access lists are not examined.
type dirState struct {
	uid          int
	open, sticky bool
}

func lookAtDir(int) (dirState, error) { return dirState{uid: os.Geteuid()}, nil }

func setMode(int, uint32) error { return nil }

// openFile opens a file and creates it if needed.
func openFile(dir *directory, name string) (int, error) {
	return open(pathIn(dir.path, name), readWrite, windows.OPEN_ALWAYS)
}

// openToRead opens an existing file.
func openToRead(dir *directory, name string) (int, error) {
	return open(pathIn(dir.path, name), readOnly, windows.OPEN_EXISTING)
}

// A fileState is the state of an open file.
type fileState struct {
	size    int64
	removed bool
	odd     bool // no regular file, or one with other names
}

// oddAttributes are the attributes of what is no regular file.
const oddAttributes = windows.FILE_ATTRIBUTE_DIRECTORY | windows.FILE_ATTRIBUTE_REPARSE_POINT | windows.FILE_ATTRIBUTE_DEVICE

func lookAt(fd int) (fileState, error) {
	var info windows.ByHandleFileInformation
	if err := windows.GetFileInformationByHandle(windows.Handle(fd), &info); err != nil {
		return fileState{}, os.NewSyscallError("GetFileInformationByHandle", err)
	}
	return fileState{
		size:    int64(info.FileSizeHigh)<<32 | int64(info.FileSizeLow),
		removed: info.NumberOfLinks == 0,
		odd:     info.NumberOfLinks > 1 || info.FileAttributes&oddAttributes != 0,
	}, nil
}

// modTime returns when an open file was last written to.
func modTime(fd int) (time.Time, error) {
	var info windows.ByHandleFileInformation
	err := windows.GetFileInformationByHandle(windows.Handle(fd), &info)
	return time.Unix(0, info.LastWriteTime.Nanoseconds()), os.NewSyscallError("GetFileInformationByHandle", err)
}

// isAt reports whether an open file is the one at path. A file that is removed while another process
// has it open keeps its name for a while, and may not be opened.
func isAt(fd int, path string) (bool, error) {
	there, err := open(path, 0, windows.OPEN_EXISTING)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) || errors.Is(err, windows.ERROR_DELETE_PENDING) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer closeFile(there)
	var a, b windows.ByHandleFileInformation
	err = errors.Join(windows.GetFileInformationByHandle(windows.Handle(fd), &a), windows.GetFileInformationByHandle(windows.Handle(there), &b))
	same := a.VolumeSerialNumber == b.VolumeSerialNumber && a.FileIndexHigh == b.FileIndexHigh && a.FileIndexLow == b.FileIndexLow
	return same, os.NewSyscallError("GetFileInformationByHandle", err)
}

// lock locks a file if that is possible at once. Like flock, it first releases an
// existing lock of this open file.
func lock(fd int, how uint32) (bool, error) {
	unlock(fd)
	err := windows.LockFileEx(windows.Handle(fd), how|windows.LOCKFILE_FAIL_IMMEDIATELY, 0, 1, 0, lockedByte())
	switch {
	case err == nil:
		return true, nil
	case errors.Is(err, windows.ERROR_LOCK_VIOLATION), errors.Is(err, windows.ERROR_IO_PENDING):
		return false, nil
	}
	return false, os.NewSyscallError("LockFileEx", err)
}

func unlock(fd int) { _ = windows.UnlockFileEx(windows.Handle(fd), 0, 1, 0, lockedByte()) }

func closeFile(fd int) { _ = windows.CloseHandle(windows.Handle(fd)) }

// at is a place in a file.
func at(off int64) *windows.Overlapped {
	return &windows.Overlapped{Offset: uint32(off), OffsetHigh: uint32(off >> 32)}
}

func readAt(fd int, p []byte, off int64) (int, error) {
	var n uint32
	err := windows.ReadFile(windows.Handle(fd), p, &n, at(off))
	if errors.Is(err, windows.ERROR_HANDLE_EOF) {
		err = nil
	}
	return int(n), os.NewSyscallError("read", err)
}

func writeAt(fd int, p []byte, off int64) error {
	var n uint32
	err := windows.WriteFile(windows.Handle(fd), p, &n, at(off))
	if err == nil && int(n) < len(p) {
		err = io.ErrShortWrite
	}
	return os.NewSyscallError("write", err)
}

func truncate(fd int, size int64) { _ = windows.Ftruncate(windows.Handle(fd), size) }

func remove(dir *directory, name string) error {
	path := pathIn(dir.path, name)
	p, err := windows.UTF16PtrFromString(path)
	if err == nil {
		err = windows.DeleteFile(p)
	}
	return failed("remove", path, err)
}

// duplicate is not possible: a lock ends with its process, whoever else has the file open.
func duplicate(int, string) (*os.File, error) {
	return nil, fmt.Errorf("%w: processes do not inherit locks on Windows", driver.ErrUnsupported)
}

// fsType returns the name of a directory's file system, and whether it belongs to this host alone.
func fsType(fd int) (name string, local bool, err error) {
	buf := make([]uint16, windows.MAX_LONG_PATH)
	n, err := windows.GetFinalPathNameByHandle(windows.Handle(fd), &buf[0], uint32(len(buf)), 0)
	if err != nil {
		return "", false, os.NewSyscallError("GetFinalPathNameByHandle", err)
	}
	path := windows.UTF16ToString(buf[:min(int(n), len(buf))])
	var fsName [windows.MAX_PATH + 1]uint16
	err = windows.GetVolumeInformationByHandle(windows.Handle(fd), nil, 0, nil, nil, nil, &fsName[0], uint32(len(fsName)))
	if err != nil {
		return "", false, os.NewSyscallError("GetVolumeInformationByHandle", err)
	}
	return windows.UTF16ToString(fsName[:]), onThisHost(path), nil
}

// onThisHost reports whether a path of the form \\?\C:\dir is on a drive of this host.
func onThisHost(path string) bool {
	drive, _, ok := strings.Cut(strings.TrimPrefix(path, `\\?\`), `\`)
	if !ok || len(drive) != len("C:") {
		return false // \\?\UNC\server\share\dir
	}
	root, err := windows.UTF16PtrFromString(drive + `\`)
	if err != nil {
		return false
	}
	switch windows.GetDriveType(root) {
	case windows.DRIVE_FIXED, windows.DRIVE_REMOVABLE, windows.DRIVE_RAMDISK:
		return true
	}
	return false
}
