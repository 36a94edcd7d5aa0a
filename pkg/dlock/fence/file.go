package fence

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// WriteFile replaces a file with data on behalf of the holder with this token. The greatest token
// is in a file of its own, path + ".fence", which must not be deleted. Other writers of the file
// wait for a lock on it, and ctx limits that wait.
//
// Readers see the old content or the new one, never a part. When WriteFile returns nil, token and
// content are on the disk. If it fails or the process dies in between, the old content or the new
// one is there, and the token may already count as seen. As with os.WriteFile, perm is that of a new
// file before umask; here every write makes a new file. path must not be a symbolic link, nor end in
// ".fence".
//
// Whoever can open the fence can lock it. So its group, or all users, can open it only if perm lets
// them write and the directory lets them replace files, whatever umask is. For writers of a group,
// use 0o664 and a directory with mode 2775.
//
// The lock is that of flock(2): it works among the processes of one host, on a local file system.
// On a system without it, the error is errors.ErrUnsupported. A network file system is not detected.
// A process that is paused inside WriteFile keeps the lock, and the next writer waits.
func WriteFile(ctx context.Context, path string, data []byte, perm fs.FileMode, token int64) error {
	return fenceFile(ctx, path, perm, token, func() error { return replace(path, data, perm) })
}

// RaiseFile records the token without writing the file: from then on, smaller tokens are refused.
// It is the first step of a holder that reads the file before it writes. If the file does not exist
// yet, only this user can open a new fence until WriteFile says otherwise.
func RaiseFile(ctx context.Context, path string, token int64) error {
	perm := fs.FileMode(0o600)
	info, err := os.Lstat(path)
	if err == nil {
		perm = info.Mode().Perm()
	}
	return fenceFile(ctx, path, perm, token, func() error { return nil })
}

const fenceSuffix = ".fence"

// fenceFile runs write while it has the lock of a file, after the token was stored. The token is
// stored first: if the process dies in between, the fence is raised too early, which is safe.
func fenceFile(ctx context.Context, path string, perm fs.FileMode, token int64, write func() error) error {
	err := validatePath(path, token)
	if err != nil {
		return err
	}
	err = context.Cause(ctx)
	if err != nil {
		return fileError(path, err)
	}
	if !hasFlock {
		return fileError(path, fmt.Errorf("flock: %w", errors.ErrUnsupported))
	}
	seen, err := openSeen(ctx, path+fenceSuffix, perm)
	if err != nil {
		return fileError(path, err)
	}
	defer seen.file.Close() // which also unlocks it
	greatest, err := seen.read()
	if err != nil {
		return fileError(path, err)
	}
	if greatest > token {
		return &StaleError{path, token, greatest}
	}
	if greatest < token {
		err = seen.store(token)
		if err != nil {
			return fileError(path, err)
		}
	}
	err = write()
	if err != nil {
		return fileError(path, err)
	}
	return nil
}

func fileError(path string, err error) error { return fmt.Errorf("fence %q: %w", path, err) }

func validatePath(path string, token int64) error {
	if path == "" {
		return &InputError{"path", "is empty"}
	}
	if strings.HasSuffix(path, fenceSuffix) {
		return &InputError{"path", fmt.Sprintf("%q ends in %s, as the fence of another file", path, fenceSuffix)}
	}
	err := ValidateToken(token)
	if err != nil {
		return err
	}
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fileError(path, err)
	case !info.Mode().IsRegular():
		return &InputError{"path", fmt.Sprintf("%q is not a regular file: resolve symbolic links first", path)}
	}
	return nil
}

// temporaryName returns the name of the file that becomes path. It is always the same, so that the
// next writer removes what a killed one left, and short, so that it fits wherever the fence does.
func temporaryName(path string) string {
	sum := sha256.Sum256([]byte(filepath.Base(path)))
	return filepath.Join(filepath.Dir(path), fmt.Sprintf(".%x.tmp", sum[:16]))
}

// replace writes data to a new file and renames it to path. The lock keeps other writers away.
func replace(path string, data []byte, perm fs.FileMode) error {
	young := temporaryName(path)
	err := os.Remove(young)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	err = writeNew(young, data, perm)
	if err == nil {
		err = os.Rename(young, path)
	}
	if err != nil {
		_ = os.Remove(young)
		return err
	}
	return syncDir(filepath.Dir(path))
}

func writeNew(path string, data []byte, perm fs.FileMode) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, perm)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// syncDir makes a rename or a new file in a directory last.
func syncDir(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
