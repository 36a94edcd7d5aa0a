//go:build unix

package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// program is the command, built as a user would build it, but with the race detector, and except under stress with longer limits
// of time. Where the limits are what a test is about, it is called with impatient.
var program string

// impatient gives the program the limits that users have.
const impatient = "DLOCK_TEST_PATIENCE="

func TestMain(m *testing.M) {
	if mode := os.Getenv(childMode); mode != "" {
		os.Exit(beChild(mode))
	}
	dir, err := build()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	for _, name := range []string{"DLOCK_BACKEND", "DLOCK_CONFIG", "DLOCK_PASSWORD", "NO_COLOR", "LOGNAME", "USERNAME"} {
		_ = os.Unsetenv(name)
	}
	// Under nohup, or in the background of a shell, every program here would ignore a signal. What is
	// caught here, they have as it should be.
	for _, sig := range []os.Signal{syscall.SIGHUP, syscall.SIGINT} {
		if signal.Ignored(sig) {
			signal.Notify(make(chan os.Signal, 1), sig)
		}
	}
	_ = os.Setenv("GORACE", "atexit_sleep_ms=0 "+os.Getenv("GORACE")) // or every call takes a second longer
	// The tests wait more than they work. Under stress their bounds are pass marks, and they
	// must not take time from each other. A flag of the command wins.
	if !stress() {
		_ = os.Setenv("DLOCK_TEST_PATIENCE", "30s")
		_ = flag.Set("test.parallel", "10")
	}
	goleak.VerifyTestMain(stopping{m}, goleak.Cleanup(func(code int) {
		_ = os.RemoveAll(dir)
		os.Exit(code)
	}))
}

// build builds the command in a new folder.
func build() (dir string, err error) {
	dir, err = os.MkdirTemp("", "dlock-cmd-")
	if err != nil {
		return "", err
	}
	program = filepath.Join(dir, "dlock")
	args := []string{"build", "-race", "-ldflags=-s -w", "-o", program}
	if !stress() {
		args = append(args, "-tags=patient")
	}
	out, err := exec.Command("go", append(args, ".")...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%w: %s", err, out)
	}
	return dir, nil
}

// files is the URL of a fresh directory of locks.
func files(t testing.TB) string {
	t.Helper()
	return "file://" + filepath.Join(t.TempDir(), "locks")
}

// command is a call of dlock on a backend, by its environment.
func command(backend string, args ...string) *exec.Cmd {
	cmd := exec.Command(program, args...)
	cmd.Env = append(os.Environ(), "DLOCK_BACKEND="+backend)
	return cmd
}

// callLimit is a minute more than any call of the tests waits for.
const callLimit = 5 * time.Minute

// dlock calls the command to its end.
func dlock(t testing.TB, backend string, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	return finish(t, command(backend, args...))
}

func finish(t testing.TB, cmd *exec.Cmd) (stdout, stderr string, code int) {
	t.Helper()
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	cmd.WaitDelay = callLimit // for what it leaves behind, which has the pipes
	err := cmd.Start()
	if err != nil {
		t.Fatal(err)
	}
	stuck := time.AfterFunc(callLimit, func() { _ = cmd.Process.Kill() })
	err = cmd.Wait()
	if !stuck.Stop() {
		t.Errorf("%q has not ended within %v", cmd.Args, callLimit)
	}
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatalf("%q: %v", cmd.Args, err)
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}
