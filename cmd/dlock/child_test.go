//go:build unix

package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ceyewan/genesis/internal/testenv"
)

// childMode makes this program a command that dlock runs.
const childMode = "DLOCK_TEST_CHILD"

// What a child exits with if another one is still alive.
const overlapped = 99

// beChild is such a command. It locks a file of its own, the witness, for as long as
// it lives, so that whoever comes too early finds it out.
func beChild(mode string) int {
	witness := os.Args[1]
	if mode == "stubborn" || (mode == "abandoning" && strings.HasSuffix(witness, grandchild)) {
		signal.Ignore(syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	}
	f, ok := alone(witness)
	if !ok {
		return overlapped
	}
	defer f.Close()
	if mode == "brief" {
		g, ok := alone(witness + grandchild)
		if !ok {
			return overlapped
		}
		defer g.Close()
		fmt.Println("alone")
		return 0
	}
	_ = f.Truncate(0)
	_, _ = fmt.Fprint(f, os.Getpid())
	caught := make(chan os.Signal, 1)
	signal.Notify(caught, syscall.SIGUSR1)
	if mode == "obedient" || (mode == "abandoning" && !strings.HasSuffix(witness, grandchild)) {
		signal.Notify(caught, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	}
	if !strings.HasSuffix(witness, grandchild) { // and a child of its own, which must die as well, and says when both are ready
		cmd := exec.Command(os.Args[0], witness+grandchild)
		cmd.Stdout = os.Stdout
		if err := cmd.Start(); err != nil {
			return 1
		}
	} else {
		fmt.Println("ready")
	}
	fmt.Println("caught", <-caught)
	return 7
}

const grandchild = ".grandchild"

// alone locks a witness, if no living process has it.
func alone(witness string) (*os.File, bool) {
	f, err := os.OpenFile(witness, os.O_CREATE|os.O_RDWR, 0o600)
	if err == nil {
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	}
	if err != nil {
		fmt.Println("overlap at", witness, err)
	}
	return f, err == nil
}

// A wrapped command is a dlock run whose command says when it is there.
type wrapped struct {
	*exec.Cmd
	out    *bufio.Reader
	stderr transcript
	pipe   io.Closer
}

// A transcript can be read while it is written.
type transcript struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *transcript) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *transcript) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// wrap starts dlock run with a child of this kind.
func wrap(t testing.TB, backend, mode, witness string, flags ...string) *wrapped {
	t.Helper()
	return wrapProgram(t, program, backend, mode, witness, flags...)
}

// wrapProgram is wrap with a file of the program.
func wrapProgram(t testing.TB, file, backend, mode, witness string, flags ...string) *wrapped {
	t.Helper()
	args := append(append([]string{"run"}, flags...), "--", os.Args[0], witness)
	w := &wrapped{Cmd: command(backend, args...)}
	w.Path = file
	w.Env = append(w.Env, childMode+"="+mode)
	if slices.Contains(flags, "--json") { // the event of a wait is awaited
		w.Env = append(w.Env, impatient)
	}
	out, err := w.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	w.out, w.pipe, w.Stderr = bufio.NewReader(out), out, &w.stderr
	if err := w.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = w.Process.Signal(syscall.SIGCONT)
		_ = w.Process.Kill()
		killChild(witness)
		_ = w.Wait()
	})
	return w
}

// killChild ends a child that its wrapper has left behind, as it should on files.
func killChild(witness string) {
	text, _ := os.ReadFile(witness)
	if pid, err := strconv.Atoi(string(text)); err == nil {
		_ = syscall.Kill(-pid, syscall.SIGKILL)
	}
}

// limit ends dlock and what is read of it if that takes longer than any lease of the tests, until the function is called.
func (w *wrapped) limit(t testing.TB) (stop func()) {
	t.Helper()
	const limit = 3 * time.Minute
	stuck := time.AfterFunc(limit, func() {
		t.Errorf("nothing within %v; %s", limit, w.stderr.String())
		_ = w.Process.Kill()
		_ = w.pipe.Close()
	})
	return func() { stuck.Stop() }
}

// says waits for a line of the child.
func (w *wrapped) says(t testing.TB, want string) {
	t.Helper()
	defer w.limit(t)()
	line, err := w.out.ReadString('\n')
	if strings.TrimSpace(line) != want {
		t.Fatalf("the command says %q (%v), not %q; %s", line, err, want, w.stderr.String())
	}
}

// ends waits for the end of dlock and returns its exit code.
func (w *wrapped) ends(t testing.TB) int {
	t.Helper()
	defer w.limit(t)()
	_, _ = io.Copy(io.Discard, w.out)
	_ = w.Wait()
	return w.ProcessState.ExitCode()
}

// isFree reports whether no living process has a witness.
func isFree(t testing.TB, witness string) bool {
	t.Helper()
	for _, path := range []string{witness, witness + grandchild} {
		f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		_ = f.Close()
		if err != nil {
			return false
		}
	}
	return true
}

// diesWithin asserts that a child and its children are gone after a time.
func diesWithin(t testing.TB, witness string, within time.Duration) {
	t.Helper()
	testenv.Eventually(t, within, "the command and its children are dead", func() bool { return isFree(t, witness) })
}
