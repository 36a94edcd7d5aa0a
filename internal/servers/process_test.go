package servers_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ceyewan/genesis/internal/servers"
	"github.com/ceyewan/genesis/internal/testenv"
)

// shell starts a script as a process.
func shell(t *testing.T, script string) *servers.Process {
	t.Helper()
	p, err := servers.StartProcess(servers.ProcessOptions{Path: "/bin/sh", Args: []string{"-c", script}})
	check(t, err)
	t.Cleanup(func() {
		check(t, p.Kill())
		check(t, p.Stop())
	})
	return p
}

// awaitLog waits for a line of output and returns the output.
func awaitLog(t *testing.T, p *servers.Process, part string) string {
	t.Helper()
	testenv.Eventually(t, patience, part+" in the output", func() bool {
		return strings.Contains(p.Log(), part)
	})
	return p.Log()
}

func TestProcessThatCannotStart(t *testing.T) {
	t.Parallel()
	if _, err := servers.StartProcess(servers.ProcessOptions{Path: "no/such/binary"}); err == nil {
		t.Error("it started")
	}
}

func TestStopReportsAnUnaskedEnd(t *testing.T) {
	t.Parallel()
	p := shell(t, "echo out of order; exit 3")
	select {
	case <-p.Done():
	case <-time.After(patience):
		t.Fatalf("it does not end: %s", p.Log())
	}
	err := p.Stop()
	if err == nil || !strings.Contains(err.Error(), "out of order") || !strings.Contains(err.Error(), "status 3") {
		t.Errorf("Stop says %v", err)
	}
	check(t, p.Stop()) // once is enough
}

func TestStopRemovesOnlyItsOwnDirectory(t *testing.T) {
	t.Parallel()
	own := shell(t, "sleep 300")
	check(t, own.Stop())
	if _, err := os.Stat(own.Dir()); !os.IsNotExist(err) {
		t.Errorf("the temporary directory is still there: %v", err)
	}
	dir := t.TempDir()
	p, err := servers.StartProcess(servers.ProcessOptions{Path: "/bin/sh", Args: []string{"-c", "sleep 300"}, Dir: dir})
	check(t, err)
	check(t, p.Stop())
	if _, err := os.Stat(dir); err != nil {
		t.Error(err)
	}
}

func TestStopKillsAProcessThatIgnoresIt(t *testing.T) {
	t.Parallel() // it takes as long as Stop is patient
	p := shell(t, `trap "" TERM; echo ready; while :; do sleep 0.1; done`)
	awaitLog(t, p, "ready")
	check(t, p.Stop())
	if p.Running() {
		t.Error("it still runs")
	}
}

// Stop reports how an orderly process ended, with what it printed.
func TestStopReportsAnEndOutOfOrder(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		onTerm string
		killed bool
		want   string
	}{
		"in order":   {onTerm: "exit 0"},
		"crash":      {onTerm: "echo out of order; exit 3", want: "status 3"},
		"own signal": {onTerm: "echo out of order; kill -9 $$", want: "killed"},
		"hangs":      {onTerm: "echo out of order", killed: true, want: "had to be killed"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			script := "trap '" + tt.onTerm + "' TERM; echo ready; while :; do sleep 0.01; done"
			within := time.Minute
			if tt.killed {
				within = time.Second
			}
			p, err := servers.StartProcess(servers.ProcessOptions{Path: "/bin/sh", Args: []string{"-c", script}, StopWithin: within, Orderly: true})
			check(t, err)
			awaitLog(t, p, "ready")
			err = p.Stop()
			if tt.want == "" {
				check(t, err)
				return
			}
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("Stop says %v", err)
			}
			if !tt.killed && !strings.Contains(err.Error(), "out of order") { // one that hangs may not have come to it
				t.Errorf("Stop does not say what was printed: %v", err)
			}
			if errors.Is(err, servers.ErrKilled) != tt.killed || errors.Is(err, servers.ErrExit) == tt.killed {
				t.Errorf("killed: %v", err)
			}
			check(t, p.Stop()) // once is enough
		})
	}
}

func TestRestartKeepsArgumentsAndFiles(t *testing.T) {
	t.Parallel()
	p := shell(t, "cat seen 2>/dev/null; echo life >> seen; echo up; sleep 300")
	if log := awaitLog(t, p, "up"); strings.Contains(log, "life") {
		t.Errorf("first output %q", log)
	}
	first := p.Pid()
	check(t, p.Restart())
	if log := awaitLog(t, p, "up"); log != "life\nup\n" {
		t.Errorf("output of the second life %q", log)
	}
	if p.Pid() == first || !p.Running() {
		t.Error("it is not a new process")
	}
	check(t, p.Stop())
	if err := p.Restart(); err == nil {
		t.Error("it came back from being stopped for good")
	}
}

func TestStopLetsAPausedProcessEndItself(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	script := `trap "echo bye > farewell; exit" TERM; echo ready; while :; do sleep 0.01; done`
	p, err := servers.StartProcess(servers.ProcessOptions{Path: "/bin/sh", Args: []string{"-c", script}, Dir: dir, StopWithin: time.Minute})
	check(t, err)
	awaitLog(t, p, "ready")
	check(t, p.Pause())
	check(t, p.Stop())
	if _, err := os.Stat(filepath.Join(dir, "farewell")); err != nil {
		t.Errorf("it was killed: %v", err)
	}
}
