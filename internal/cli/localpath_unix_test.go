//go:build unix

package cli

import (
	"path/filepath"
	"testing"
)

// The default directory does not depend on TMPDIR: a crontab, a service and a shell must meet there.
func TestDefaultDirIsInTmp(t *testing.T) {
	t.Setenv("TMPDIR", "/elsewhere")
	if dir := DefaultDir(); filepath.Dir(dir) != "/tmp" {
		t.Errorf("%s is not in /tmp", dir)
	}
}
