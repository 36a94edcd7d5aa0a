package filelock_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/filelock"
)

// Keys that differ only in case are two locks, also where the case of the names of files does not count.
func TestKeysOfOtherCase(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "locks")
	c, err := dlock.New(&dlock.Config{}, dlock.WithBackend(filelock.New(dir)))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	for _, key := range []string{"job", "Job", "JOB"} {
		if _, err := c.TryAcquire(t.Context(), key); err != nil {
			t.Errorf("%s: %v", key, err)
		}
	}
	for name, want := range map[string]bool{"job.lock": true, "Job.lock": false, "%4aob.lock": true} {
		if got := filelock.IsListed(dir, name); got != want {
			t.Errorf("%s is listed: %t", name, got)
		}
	}
	for i := range 2500 { // more than are read at once
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprint(i)), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if !filelock.IsListed(dir, "job.lock") || filelock.IsListed(dir, "Job.lock") {
		t.Error("in a large directory: not found, or found in another case")
	}
}
