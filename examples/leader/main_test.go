package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// asService in the environment makes the test binary run as the program itself.
const asService = "EXAMPLE_AS_SERVICE"

func TestMain(m *testing.M) {
	if os.Getenv(asService) != "" {
		main()
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// Five processes: whether the leader is killed or told to stop, another one leads next, with a greater
// term.
func TestNextLeads(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	lines := make(chan string, 100)
	all := map[int]*exec.Cmd{}
	for range 5 {
		cmd := exec.Command(os.Args[0], "-dir", dir)
		cmd.Env = append(os.Environ(), asService+"=1")
		out, in, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		cmd.Stdout, cmd.Stderr = in, os.Stderr
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		_ = in.Close()
		all[cmd.Process.Pid] = cmd
		done := make(chan struct{})
		go func() { defer close(done); read(out, lines) }()
		t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait(); <-done; _ = out.Close() })
	}
	last, ends := int64(0), []syscall.Signal{syscall.SIGKILL, syscall.SIGTERM, syscall.SIGINT, syscall.SIGKILL}
	for i := range 5 {
		pid, term := elected(t, lines)
		if term <= last {
			t.Errorf("term %d after %d", term, last)
		}
		last = term
		if i == len(ends) {
			break
		}
		cmd := all[pid]
		if cmd == nil {
			t.Fatalf("%d leads twice", pid)
		}
		delete(all, pid)
		if err := cmd.Process.Signal(ends[i]); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait()
	}
}

func read(r io.Reader, lines chan<- string) {
	for s := bufio.NewScanner(r); s.Scan(); {
		lines <- s.Text()
	}
}

// elected waits for the next process that leads.
func elected(t *testing.T, lines <-chan string) (pid int, term int64) {
	t.Helper()
	for {
		select {
		case line := <-lines:
			if n, _ := fmt.Sscanf(line, "%d leads, term %d", &pid, &term); n == 2 {
				return pid, term
			}
		case <-time.After(time.Minute):
			t.Fatal("nobody leads")
		}
	}
}
