//go:build unix

package cli

import (
	"os"
	"path/filepath"
	"strconv"
)

// DefaultDir is where locks are files by default. It depends on the
// user and on nothing else: a crontab, a service and a shell must meet there.
func DefaultDir() string { return filepath.Join("/tmp", "dlock-"+strconv.Itoa(os.Getuid())) }

// defaultDirName is the same for the help, whoever reads it.
const defaultDirName = "/tmp/dlock-UID"

// localPath is the path in a file URL.
func localPath(path string) string { return path }

// urlPath is the inverse of localPath.
func urlPath(path string) string { return path }
