//go:build !linux

package errors_test

import (
	"os"
	"path/filepath"
	"testing"
)

func mountTmpfs(t *testing.T) string {
	t.Helper()
	t.Skip("needs a tmpfs, which the test mounts on Linux only")
	return ""
}

func noRights(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	check(t, os.Chmod(dir, 0o500))
	return filepath.Join(dir, "locks")
}

func remountReadOnly(*testing.T, string) {}
