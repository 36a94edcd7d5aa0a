//go:build unix

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"

	"github.com/ceyewan/genesis/internal/testenv"
)

// A screen is what a command has written to its terminal.
type screen struct {
	*os.File
	seen transcript
	done chan struct{}
}

// onTerminal starts a command on a terminal of its own.
func onTerminal(t testing.TB, cmd *exec.Cmd) *screen {
	t.Helper()
	return onTerminalOf(t, cmd, 100)
}

// onTerminalOf is onTerminal with so many columns.
func onTerminalOf(t testing.TB, cmd *exec.Cmd, columns uint16) *screen {
	t.Helper()
	f, err := pty.StartWithSize(cmd, &pty.Winsize{Rows: 24, Cols: columns})
	if err != nil {
		t.Fatal(err)
	}
	s := &screen{File: f, done: make(chan struct{})}
	go func() {
		defer close(s.done)
		buf := make([]byte, 4096)
		for {
			n, err := f.Read(buf)
			_, _ = s.seen.Write(buf[:n])
			if err != nil { // the terminal is gone with its last process
				return
			}
		}
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		_ = f.Close()
		<-s.done
	})
	return s
}

func (s *screen) String() string { return s.seen.String() }

// shows waits until something was written.
func (s *screen) shows(t testing.TB, what string) {
	t.Helper()
	testenv.Eventually(t, time.Minute, "the terminal shows "+what, func() bool { return strings.Contains(s.String(), what) })
}

// exitOf waits for the end of a command and returns its exit code, or -1 if it had to be killed.
func exitOf(cmd *exec.Cmd) int {
	stuck := time.AfterFunc(2*time.Minute, func() { _ = cmd.Process.Kill() })
	defer stuck.Stop()
	_ = cmd.Wait()
	return cmd.ProcessState.ExitCode()
}

// aSecond matches the time in the line of a waiter from one second on.
var aSecond = regexp.MustCompile(`[^\x1b]\[[1-9][0-9.]*(s|m[0-9]|h)`)

// A waiter at a terminal sees the holder, and the line is gone when the
// command starts.
func TestTerminalShowsTheWait(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, backend, name string) {
		holder := wrap(t, backend, "obedient", filepath.Join(t.TempDir(), "w"), "k")
		holder.says(t, "ready")
		cmd := command(backend, "run", "k", "--", "echo", "it is my turn")
		s := onTerminal(t, cmd)
		s.shows(t, `waiting for "k", held by `)
		testenv.Eventually(t, time.Minute, "the terminal goes on counting", func() bool { return aSecond.MatchString(s.String()) })
		_ = holder.Process.Signal(syscall.SIGTERM)
		s.shows(t, "it is my turn")
		if code := exitOf(cmd); code != 0 {
			t.Errorf("exit %d", code)
		}
		text := s.String()
		if i := strings.Index(text, "it is my turn"); !strings.HasSuffix(text[:i], "\r\x1b[K") {
			t.Errorf("%s: the line is still there: %q", name, text)
		}
	})
}

// Control-C reaches the command, which has the terminal, and reads from it.
func TestTerminalBelongsToTheCommand(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, backend, _ string) {
		cmd := command(backend, "run", "k", "--", "sh", "-c", `trap "echo got INT; exit 5" INT; read line; echo "read $line"; echo ready; while :; do sleep 0.05; done`)
		s := onTerminal(t, cmd)
		if _, err := s.Write([]byte("hello\n")); err != nil {
			t.Fatal(err)
		}
		s.shows(t, "read hello")
		s.shows(t, "ready")
		if _, err := s.Write([]byte{3}); err != nil {
			t.Fatal(err)
		}
		s.shows(t, "got INT")
		if code := exitOf(cmd); code != 5 {
			t.Errorf("exit %d: %s", code, s)
		}
	})
}

// Control-C ends the wait, too.
func TestTerminalInterruptsTheWait(t *testing.T) {
	t.Parallel()
	backend := files(t)
	wrap(t, backend, "obedient", filepath.Join(t.TempDir(), "w"), "k").says(t, "ready")
	cmd := command(backend, "run", "k", "--", "echo", "never")
	s := onTerminal(t, cmd)
	s.shows(t, "waiting")
	if _, err := s.Write([]byte{3}); err != nil {
		t.Fatal(err)
	}
	if code := exitOf(cmd); code != 130 || strings.Contains(s.String(), "never") {
		t.Errorf("exit %d: %s", code, s)
	}
}

// A script that calls dlock has the terminal again afterwards.
func TestTerminalComesBack(t *testing.T) {
	t.Parallel()
	cmd := command(files(t), "-c", `"$P" run k -- true; echo over; read line; echo "read $line"`)
	cmd.Path, cmd.Args[0] = "/bin/sh", "sh"
	cmd.Env = append(cmd.Env, "P="+program)
	s := onTerminal(t, cmd)
	s.shows(t, "over")
	if _, err := s.Write([]byte("hello\n")); err != nil {
		t.Fatal(err)
	}
	s.shows(t, "read hello")
	if code := exitOf(cmd); code != 0 {
		t.Errorf("exit %d: %s", code, s)
	}
}
