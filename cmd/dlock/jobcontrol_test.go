//go:build unix

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ceyewan/genesis/internal/testenv"
)

// A shell is an interactive bash, for its job control.
type shell struct {
	*screen
	cmd *exec.Cmd
}

func (s *shell) types(t testing.TB, text string) {
	t.Helper()
	if _, err := s.Write([]byte(text)); err != nil {
		t.Fatal(err)
	}
}

// exits leaves the shell, which must have been there until now.
func (s *shell) exits(t testing.TB) {
	t.Helper()
	s.types(t, "exit 0\n")
	if code := exitOf(s.cmd); code != 0 {
		t.Errorf("exit %d: %s", code, s.screen)
	}
}

// interactive starts a shell on a terminal. $P is the program, $D a directory.
func interactive(t testing.TB, dir string) *shell {
	t.Helper()
	return interactiveOn(t, files(t), dir)
}

// interactiveOn is interactive with a backend and more variables.
func interactiveOn(t testing.TB, backend, dir string, env ...string) *shell {
	t.Helper()
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Fatal(err) // its job control is needed, and scripts/test runs in it
	}
	cmd := command(backend, "--norc", "--noprofile", "-i")
	cmd.Path, cmd.Args[0] = bash, "bash"
	cmd.Env = append(append(cmd.Env, "PS1=prompt> ", "HISTFILE=", "P="+program, "D="+dir, "TERM=dumb"), env...)
	s := &shell{onTerminal(t, cmd), cmd}
	t.Cleanup(func() {
		if t.Failed() { // or the jobs would keep the terminal open
			t.Logf("the terminal shows %s", s)
			_ = exec.Command("pkill", "-KILL", "-s", strconv.Itoa(cmd.Process.Pid)).Run()
		}
	})
	s.shows(t, "prompt> ")
	return s
}

// Control-Z gives the terminal back to a shell with job control, and fg goes on.
func TestTerminalSuspends(t *testing.T) {
	t.Parallel()
	s := interactive(t, t.TempDir())
	s.types(t, "$P run k -- sh -c 'echo one; read a; echo \"two $a\"'\n")
	s.shows(t, "\none\r\n")
	s.types(t, "\x1a")
	s.shows(t, "Stopped")
	s.types(t, "$P run --try k -- true; echo busy $?\n")
	s.shows(t, "busy 75")
	s.types(t, "fg\n")
	s.shows(t, "fg\r\n")
	s.types(t, "more\n")
	s.shows(t, "two more")
	s.types(t, "$P run --try k -- true; echo free $?\n")
	s.shows(t, "free 0")
	s.exits(t)
}

// A command that ends in the background leaves the terminal to the shell, which would end without it.
func TestBackgroundLeavesTheTerminal(t *testing.T) {
	t.Parallel()
	backend, dir := files(t), t.TempDir()
	s := interactiveOn(t, backend, dir)
	end := filepath.Join(dir, "end")
	if err := syscall.Mkfifo(end, 0o600); err != nil {
		t.Fatal(err)
	}
	// It starts no process while it waits: one that is stopped before it has executed another program keeps its parent
	// from being stopped.
	s.types(t, "$P run k -- sh -c 'echo one; read line <$D/end; echo two'\n")
	s.shows(t, "\none\r\n")
	s.types(t, "\x1a")
	s.shows(t, "Stopped")
	s.types(t, "bg\n")
	s.types(t, "echo in the back''ground\n")
	s.shows(t, "in the background")
	if err := os.WriteFile(end, []byte("\n"), 0o600); err != nil { // while the shell waits for a line
		t.Fatal(err)
	}
	s.shows(t, "two\r\n") // and not the line that was typed
	if _, errs, code := dlock(t, backend, "run", "--wait", "1m", "k", "--", "true"); code != 0 {
		t.Fatalf("exit %d, %s", code, errs)
	}
	s.types(t, "read line; echo re''ad $line\n")
	s.types(t, "this\n")
	s.shows(t, "read this")
	s.exits(t)
}

// A command in the background that reads is stopped, and dlock with it, so that the shell knows. fg lets it read.
func TestBackgroundReads(t *testing.T) {
	t.Parallel()
	s := interactive(t, t.TempDir())
	s.types(t, "$P run k -- sh -c 'read a; echo \"two $a\"' &\n")
	s.stops(t)
	s.types(t, "bg\n")
	s.stops(t)
	s.types(t, "fg; echo co''de $?\n")
	s.shows(t, "fg; echo")
	s.types(t, "more\n")
	s.shows(t, "two more")
	s.shows(t, "code 0")
	s.exits(t)
}

// stops waits until the shell has seen that its only job is stopped.
func (s *shell) stops(t testing.TB) {
	t.Helper()
	before := strings.Count(s.String(), "is stopped")
	s.types(t, "until jobs -s | grep -q .; do sleep 0.1; done; echo is sto''pped\n")
	testenv.Eventually(t, time.Minute, "the job is stopped", func() bool { return strings.Count(s.String(), "is stopped") > before })
}

// The shell does not tell a running job that it is in the foreground now. Control-Z stops its command all the same, and
// kill ends it.
func TestForegroundOfARunningJob(t *testing.T) {
	t.Parallel()
	for name, input := range map[string]string{"terminal": "", "file": "</dev/null"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			if err := syscall.Mkfifo(filepath.Join(dir, "end"), 0o600); err != nil {
				t.Fatal(err)
			}
			s := interactive(t, dir)
			s.types(t, "echo 'echo $$ > $D/pid; echo one; read line <$D/end' > $D/c\n")
			s.types(t, "$P run k -- sh $D/c "+input+" &\n")
			s.shows(t, "one\r\n")
			s.types(t, "fg; echo sus''pended\n")
			// Once, and not before: Control-Z also discards what the terminal has not passed on yet, in both directions.
			testenv.Eventually(t, time.Minute, "the job is in the foreground", func() bool {
				front, err := unix.IoctlGetInt(int(s.Fd()), unix.TIOCGPGRP)
				return err == nil && front != s.cmd.Process.Pid
			})
			s.types(t, "\x1a")
			s.shows(t, "suspended")
			s.types(t, "until ps -o stat= -p $(cat $D/pid) | grep -q ^T; do sleep 0.1; done; echo is sto''pped\n")
			s.shows(t, "is stopped")
			// bash may still take the job for stopped, and wait would not wait for it then.
			s.types(t, "kill %1; while kill -0 %1; do sleep 0.1; done 2>/dev/null; $P run --try k -- true; echo fr''ee $?\n")
			s.shows(t, "free 0")
			s.exits(t)
		})
	}
}

// Without a shell that has job control, nothing could continue a command: Control-Z does nothing.
func TestSuspendWithoutJobControl(t *testing.T) {
	t.Parallel()
	cmd := command(files(t), "run", "k", "--", "sh", "-c", `echo one; read a; echo "two $a"`)
	s := onTerminal(t, cmd)
	s.shows(t, "one")
	for _, text := range []string{"\x1a", "more\n"} {
		if _, err := s.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	s.shows(t, "two more")
	if code := exitOf(cmd); code != 0 {
		t.Errorf("exit %d: %s", code, s)
	}
}

// A command that is stopped is continued, so that it can handle the signal that ends it.
func TestSignalsReachAStoppedCommand(t *testing.T) {
	t.Parallel()
	for _, sig := range signals {
		witness := filepath.Join(t.TempDir(), "w")
		w := wrap(t, files(t), "obedient", witness, "k")
		w.says(t, "ready")
		pid, err := os.ReadFile(witness)
		if err != nil {
			t.Fatal(err)
		}
		if out, err := exec.Command("kill", "-STOP", string(pid)).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		testenv.Eventually(t, time.Minute, "the command is stopped", func() bool {
			state, _ := exec.Command("ps", "-o", "stat=", "-p", string(pid)).Output()
			return strings.HasPrefix(string(state), "T")
		})
		stuck := time.AfterFunc(time.Minute, func() { _ = w.Process.Signal(syscall.SIGKILL) })
		_ = w.Process.Signal(sig.Signal)
		w.says(t, "caught "+sig.name)
		if code := w.ends(t); code != 7 {
			t.Errorf("%s: exit %d", sig.name, code)
		}
		stuck.Stop()
	}
}
