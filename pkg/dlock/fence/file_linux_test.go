package fence_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock/fence"
)

// waitUntilOpen waits until this process has opened a file n times.
func waitUntilOpen(t *testing.T, path string, n int) {
	t.Helper()
	testenv.Eventually(t, time.Minute, path+" is open", func() bool {
		all, err := filepath.Glob("/proc/self/fd/*")
		if err != nil {
			t.Fatal(err)
		}
		open := 0
		for _, fd := range all {
			if target, err := os.Readlink(fd); err == nil && target == path {
				open++
			}
		}
		return open == n
	})
}

// A fence that is deleted while a writer waits for it does not count: two writers would have two locks.
func TestDeletedFenceOfFileIsMadeAgain(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "file")
	mustWrite(t, path, "a", 1)
	other, err := os.Open(path + ".fence")
	if err != nil {
		t.Fatal(err)
	}
	err = syscall.Flock(int(other.Fd()), syscall.LOCK_EX)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- fence.WriteFile(ctx, path, []byte("b"), 0o600, 2) }()
	waitUntilOpen(t, path+".fence", 2) // here and in WriteFile
	err = errors.Join(os.Remove(path+".fence"), other.Close())
	if err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path + ".fence")
	if string(text) != "0000000000000000002\n" || err != nil {
		t.Errorf("the fence is %q, %v", text, err)
	}
}
