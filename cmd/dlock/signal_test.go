//go:build unix

package main

import (
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ceyewan/genesis/internal/testenv"
)

var signals = []struct {
	syscall.Signal
	name string
}{{syscall.SIGINT, "interrupt"}, {syscall.SIGTERM, "terminated"}, {syscall.SIGHUP, "hangup"}}

// A signal goes to the command, whose exit code counts, and the lock is free.
func TestSignalsArePassedOn(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, backend, _ string) {
		for _, s := range signals {
			witness := filepath.Join(t.TempDir(), "w")
			w := wrap(t, backend, "obedient", witness, "k")
			w.says(t, "ready")
			_ = w.Process.Signal(s.Signal)
			w.says(t, "caught "+s.name)
			if code := w.ends(t); code != 7 {
				t.Errorf("%s: exit %d", s.name, code)
			}
			diesWithin(t, witness, time.Second+busy) // the signal went to the whole group
			if _, errs, code := dlock(t, backend, "run", "--try", "k", "--", "true"); code != 0 {
				t.Errorf("%s: afterwards exit %d, %s", s.name, code, errs)
			}
		}
	})
}

// A command that does not end keeps the lock, however often it is told to.
func TestSignalsIgnored(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, backend, _ string) {
		witness := filepath.Join(t.TempDir(), "w")
		w := wrap(t, backend, "stubborn", witness, "k")
		w.says(t, "ready")
		for _, s := range signals {
			_ = w.Process.Signal(s.Signal)
		}
		if _, _, code := dlock(t, backend, "run", "--wait", "2s", "k", "--", "true"); code != 75 {
			t.Errorf("the lock passed on though the command goes on: exit %d", code)
		}
		if isFree(t, witness) {
			t.Fatal("the command has ended")
		}
		_ = w.Process.Signal(syscall.SIGUSR1)
		w.says(t, "caught user defined signal 1")
		if code := w.ends(t); code != 7 {
			t.Errorf("exit %d", code)
		}
	})
}

// A signal ends the wait for a lock, and leaves nothing behind.
func TestSignalsEndTheWait(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, backend, name string) {
		dir := t.TempDir()
		holder := wrap(t, backend, "obedient", filepath.Join(dir, "w"), "k")
		holder.says(t, "ready")
		for _, s := range signals {
			w := wrap(t, backend, "brief", filepath.Join(dir, "never"), "--json", "k")
			awaitEvent(t, w, "waiting")
			_ = w.Process.Signal(s.Signal)
			if code := w.ends(t); code != 128+int(s.Signal) {
				t.Errorf("%s: exit %d, %s", s.name, code, w.stderr.String())
			}
			if queue := seen(t, backend, "k").Queue; len(queue) > 0 {
				t.Errorf("%s: it still waits: %+v", s.name, queue)
			}
		}
		_ = holder.Process.Signal(syscall.SIGTERM)
		holder.ends(t)
		if _, errs, code := dlock(t, backend, "run", "--wait", testenv.UnderStress("30s", "1s"), "k", "--", "true"); code != 0 {
			t.Errorf("%s: afterwards exit %d, %s", name, code, errs)
		}
	})
}

// What was ignored when dlock was started stays ignored, as nohup wants it.
func TestIgnoredSignalsStayIgnored(t *testing.T) {
	t.Parallel()
	script := `trap "" HUP; exec "$0" run k -- sh -c 'kill -HUP $$; echo alive'`
	cmd := command(files(t), script, program)
	cmd.Path, cmd.Args = "/bin/sh", append([]string{"sh", "-c"}, cmd.Args[1:]...)
	if out, errs, code := finish(t, cmd); code != 0 || out != "alive\n" {
		t.Errorf("exit %d, %q, %s", code, out, errs)
	}
}

// awaitEvent waits until --json has told of something.
func awaitEvent(t testing.TB, w *wrapped, what string) {
	t.Helper()
	testenv.Eventually(t, time.Minute, "the event "+what, func() bool {
		return strings.Contains(w.stderr.String(), `"event":"`+what+`"`)
	})
}
