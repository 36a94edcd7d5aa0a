package cli

import (
	"os"
	"path/filepath"
	"strings"
)

// DefaultDir is where locks are files by default: a directory of the user that stays on this
// host.
func DefaultDir() string {
	dir, err := os.UserCacheDir()
	if err != nil {
		dir = os.TempDir()
	}
	return filepath.Join(dir, "dlock")
}

// defaultDirName is the same for the help, whoever reads it.
const defaultDirName = `%LocalAppData%\dlock`

// localPath is the path in a file URL: file:///C:/locks is C:\locks.
func localPath(path string) string {
	if drive := strings.TrimPrefix(path, "/"); filepath.VolumeName(drive) != "" {
		path = drive
	}
	return filepath.FromSlash(path)
}

// urlPath is the inverse of localPath.
func urlPath(path string) string { return "/" + filepath.ToSlash(path) }
