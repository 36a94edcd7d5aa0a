package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ceyewan/genesis/internal/testenv"
)

// guardianOf waits for the guardian of a command, if it is another one than before.
func guardianOf(t *testing.T, witness string, before int) (pid int) {
	t.Helper()
	group, err := os.ReadFile(witness)
	if err != nil {
		t.Fatal(err)
	}
	want := fmt.Sprintf("dlock\x00__guardian\x00%s\x00", group)
	testenv.Eventually(t, time.Minute, "a guardian of the command", func() bool {
		files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
		for _, f := range files {
			if text, err := os.ReadFile(f); err == nil && string(text) == want {
				pid, _ = strconv.Atoi(strings.Split(f, "/")[2])
				return pid != before
			}
		}
		return false
	})
	return pid
}

// A guardian that was killed is replaced, so that the command does not outlive the lock of a dlock that is stopped.
func TestGuardianKilled(t *testing.T) {
	t.Parallel()
	backend, witness := "redis://"+testenv.Redis(t).Addr(), filepath.Join(t.TempDir(), "w")
	h := wrap(t, backend, "stubborn", witness, shortly("k")...)
	h.says(t, "ready")
	first := guardianOf(t, witness, 0)
	_ = syscall.Kill(first, syscall.SIGKILL)
	guardianOf(t, witness, first)
	next := wrap(t, backend, "brief", witness, shortly("k")...)
	_ = h.Process.Signal(syscall.SIGSTOP)
	next.says(t, "alone")
}

// A guardian that is stopped does not keep dlock from ending, and does not stay.
func TestGuardianStopped(t *testing.T) {
	t.Parallel()
	witness := filepath.Join(t.TempDir(), "w")
	h := wrap(t, "redis://"+testenv.Redis(t).Addr(), "obedient", witness, shortly("k")...)
	h.says(t, "ready")
	guardian := guardianOf(t, witness, 0)
	_ = syscall.Kill(guardian, syscall.SIGSTOP)
	_ = h.Process.Signal(syscall.SIGTERM)
	h.says(t, "caught terminated")
	stuck := time.AfterFunc(time.Minute, func() {
		t.Error("dlock waits for its guardian")
		_ = syscall.Kill(guardian, syscall.SIGKILL)
	})
	defer stuck.Stop()
	if code := h.ends(t); code != 7 {
		t.Errorf("exit %d, %s", code, h.stderr.String())
	}
	testenv.Eventually(t, time.Minute, "the guardian is gone", func() bool { return syscall.Kill(guardian, 0) != nil })
}

// The guardian starts though the file of the program is removed, as by an update.
func TestGuardianOfARemovedProgram(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file, witness := filepath.Join(dir, "dlock"), filepath.Join(dir, "w")
	if err := os.Link(program, file); err != nil {
		t.Fatal(err)
	}
	backend := "redis://" + testenv.Redis(t).Addr()
	holder := wrap(t, backend, "obedient", filepath.Join(dir, "holder"), shortly("k")...)
	holder.says(t, "ready")
	h := wrapProgram(t, file, backend, "obedient", witness, append([]string{"--json"}, shortly("k")...)...)
	awaitEvent(t, h, "waiting")
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	_ = holder.Process.Signal(syscall.SIGTERM)
	h.says(t, "ready")
	guardianOf(t, witness, 0)
}
