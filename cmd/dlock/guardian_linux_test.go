package main

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/ceyewan/genesis/internal/testenv"
)

// A guardian that was killed is replaced, so that the command does not outlive the lock of a dlock that is stopped.
func TestGuardianKilled(t *testing.T) {
	t.Parallel()
	backend, witness := theRedis.backend(t), filepath.Join(t.TempDir(), "w")
	h := wrap(t, backend, "stubborn", witness, reserved("k")...)
	h.says(t, "ready")
	first := guardianOf(t, witness, 0)
	_ = syscall.Kill(first, syscall.SIGKILL)
	guardianOf(t, witness, first)
	next := wrap(t, backend, "brief", witness, "k")
	_ = h.Process.Signal(syscall.SIGSTOP)
	next.says(t, "alone")
}

// A guardian that is stopped does not keep dlock from ending, and does not stay.
func TestGuardianStopped(t *testing.T) {
	t.Parallel()
	witness := filepath.Join(t.TempDir(), "w")
	h := wrap(t, theRedis.backend(t), "obedient", witness, "k")
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
	backend := theRedis.backend(t)
	holder := wrap(t, backend, "obedient", filepath.Join(dir, "holder"), "k")
	holder.says(t, "ready")
	h := wrapProgram(t, file, backend, "obedient", witness, "--json", "k")
	awaitEvent(t, h, "waiting")
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	_ = holder.Process.Signal(syscall.SIGTERM)
	h.says(t, "ready")
	guardianOf(t, witness, 0)
}
