package main

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/ceyewan/genesis/internal/servers"
	"github.com/ceyewan/genesis/internal/testenv"
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

// A printed is a line of a process.
type printed struct {
	pid        int
	verb, name string
}

func start(t *testing.T, lines chan<- printed, args ...string) *servers.Child {
	t.Helper()
	cmd := exec.Command(os.Args[0], args...)
	cmd.Env = append(os.Environ(), asService+"=1")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	child := testenv.Child(t, cmd)
	go func() {
		for in := bufio.NewScanner(out); in.Scan(); {
			var p printed
			if n, _ := fmt.Sscanf(in.Text(), "%d %s %s", &p.pid, &p.verb, &p.name); n == 3 {
				lines <- p
			}
		}
	}()
	return child
}

func next(t *testing.T, lines <-chan printed, verb string) printed {
	t.Helper()
	select {
	case p := <-lines:
		if p.verb != verb {
			t.Fatalf("a process prints %+v, not that it %s", p, verb)
		}
		return p
	case <-time.After(2 * time.Minute):
		t.Fatalf("no process %s anything", verb)
	}
	return printed{}
}

// Five processes with many callers each: every report is computed once.
func TestComputedOnce(t *testing.T) {
	t.Parallel()
	addr := testenv.Redis(t).Addr()
	names := []string{"monday", "tuesday", "wednesday", "thursday", "friday"}
	const processes = 5
	lines := make(chan printed, 100)
	for range processes {
		start(t, lines, append([]string{"-redis", addr, "-callers", "50", "-takes", "100ms", "-lease", "30s"}, names...)...)
	}
	computed, got := map[string]int{}, 0
	for got < processes*len(names) {
		select {
		case p := <-lines:
			if p.verb == "computes" {
				computed[p.name]++
			} else {
				got++
			}
		case <-time.After(2 * time.Minute):
			t.Fatalf("%d reports were read", got)
		}
	}
	for _, name := range names {
		if computed[name] != 1 {
			t.Errorf("%s was computed %d times", name, computed[name])
		}
	}
}

// The process that computes is killed: another one computes after its lease.
func TestComputerIsKilled(t *testing.T) {
	t.Parallel()
	addr := testenv.Redis(t).Addr()
	lines := make(chan printed, 100)
	first := start(t, lines, "-redis", addr, "-takes", "1h", "-lease", "5s", "monday")
	next(t, lines, "computes")
	second := start(t, lines, "-redis", addr, "-takes", "1ms", "-wait", "1h", "-lease", "5s", "monday")
	first.Kill()
	if p := next(t, lines, "computes"); p.pid != second.Pid() {
		t.Errorf("%+v", p)
	}
	next(t, lines, "has")
}

// A process that has waited long enough computes for itself, and stores the result.
func TestWaitIsOver(t *testing.T) {
	t.Parallel()
	addr := testenv.Redis(t).Addr()
	lines := make(chan printed, 100)
	start(t, lines, "-redis", addr, "-callers", "1", "-takes", "1h", "monday")
	next(t, lines, "computes")
	start(t, lines, "-redis", addr, "-callers", "1", "-takes", "1ms", "-wait", "1s", "monday")
	next(t, lines, "computes")
	next(t, lines, "has")
	start(t, lines, "-redis", addr, "-takes", "1h", "monday")
	next(t, lines, "has")
}
