//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package fence_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/ceyewan/genesis/internal/testenv"
)

// A writer that is killed leaves its temporary file. The next writer removes it.
func TestKilledWriterLeavesNothing(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "file")
	temporary := func() []string {
		found, err := filepath.Glob(filepath.Join(dir, ".*.tmp"))
		if err != nil {
			t.Fatal(err)
		}
		return found
	}
	testenv.Eventually(t, 2*time.Minute, "a killed writer leaves a file", func() bool {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), asWriter+"="+path)
		child := testenv.Child(t, cmd)
		testenv.Eventually(t, time.Minute, "the writer writes", func() bool { return len(temporary()) > 0 })
		child.Kill()
		return len(temporary()) > 0
	})
	mustWrite(t, path, "next", 2)
	if left := temporary(); len(left) != 0 {
		t.Errorf("%q are left", left)
	}
}
