package filelock

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// A call waits a quarter of a second for a guard that another process has, and a waiter, which
// tries again, a small part of that.
func TestWaitForGuardHasATimeout(t *testing.T) {
	for name, tt := range map[string]struct {
		tries       int
		least, most time.Duration
	}{
		"call":   {callTries, 240 * time.Millisecond, 260 * time.Millisecond},
		"waiter": {waiterTries, 200 * time.Microsecond, time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				path := t.TempDir()
				fd, err := openDir(path)
				if err != nil {
					t.Fatal(err)
				}
				defer closeFile(fd)
				dir := &directory{fd: fd, path: path, perm: privatePerm}
				guard, err := dir.guard(t.Context(), "k", 1)
				if err != nil {
					t.Fatal(err)
				}
				defer unlockAndClose(guard)
				began := time.Now()
				_, err = dir.guard(t.Context(), "k", tt.tries)
				took := time.Since(began)
				if !errors.Is(err, errGuarded) || took < tt.least || took > tt.most {
					t.Errorf("%v after %v, want from %v to %v", err, took, tt.least, tt.most)
				}
			})
		})
	}
}
