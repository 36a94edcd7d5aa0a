//go:build linux || darwin

// Package scripts has the tests of the scripts that the test command relies on.
package scripts

import (
	"errors"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ceyewan/genesis/internal/testenv"
)

// leftovers runs a shell command under scripts/leftovers.
func leftovers(t *testing.T, command string) (code int, out string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), filepath.Join("..", "..", "scripts", "leftovers"), "sh", "-c", command)
	cmd.Env = append(os.Environ(), "TMPDIR="+t.TempDir())
	// Not a pipe: a process that is left would keep it open.
	file, err := os.Create(filepath.Join(t.TempDir(), "out"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	cmd.Stdout, cmd.Stderr = file, file
	err = cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	text, err := os.ReadFile(file.Name())
	if err != nil {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), string(text)
}

// A signal ends the command and what it has started, not the script alone.
func TestLeftoversForwardsSignals(t *testing.T) {
	t.Parallel()
	for sig, code := range map[syscall.Signal]int{syscall.SIGINT: 130, syscall.SIGTERM: 143, syscall.SIGHUP: 129, syscall.SIGQUIT: 131} {
		if signal.Ignored(sig) {
			continue // as under nohup: the script ignores it too
		}
		dir := t.TempDir()
		ready := filepath.Join(dir, "ready")
		cmd := exec.CommandContext(t.Context(), filepath.Join("..", "..", "scripts", "leftovers"), "sh", "-c",
			`sleep 1238 & echo $! > "$0.new"; mv "$0.new" "$0"; sleep 1239`, ready)
		cmd.Env = append(os.Environ(), "TMPDIR="+dir)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		var text []byte
		testenv.Eventually(t, time.Minute, "the command runs", func() (ok bool) {
			var err error
			text, err = os.ReadFile(ready)
			return err == nil
		})
		pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = syscall.Kill(pid, syscall.SIGKILL) })
		_ = cmd.Process.Signal(sig)
		_ = cmd.Wait()
		if got := cmd.ProcessState.ExitCode(); got != code {
			t.Errorf("%v: %v, want exit %d", sig, cmd.ProcessState, code)
		}
		testenv.Eventually(t, time.Minute, "the process has ended", func() bool { return ended(t, pid) })
	}
}

// ended reports whether a process has ended. Its parent may not have waited for it yet.
func ended(t *testing.T, pid int) bool {
	t.Helper()
	stat, _ := exec.CommandContext(t.Context(), "ps", "-o", "stat=", "-p", strconv.Itoa(pid)).Output()
	state := strings.TrimSpace(string(stat))
	return state == "" || strings.HasPrefix(state, "Z")
}

func TestLeftoversAreNamed(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		command string
		code    int
		out     string
	}{
		"nothing":                 {`echo done`, 0, `^done\n$`},
		"a failure":               {`exit 7`, 7, `^$`},
		"a process":               {`sleep 1234 &`, 1, `^left behind: process \d+: sleep 1234\n$`},
		"a process, without mark": {`cd "$TMPDIR" && env -i sleep 1235 &`, 1, `^left behind: process \d+: sleep 1235\n$`},
		"a process in a session":  {`setsid sleep 1236 &`, 1, `^left behind: process \d+: sleep 1236\n$`},
		"a file":                  {`touch "$TMPDIR/a b"`, 1, `^left behind: temporary file a b\n$`},
		"a hidden folder":         {`mkdir "$TMPDIR/.hidden"`, 1, `^left behind: temporary file .hidden\n$`},
		"a failure and a file":    {`touch "$TMPDIR/x"; exit 3`, 3, `^left behind: temporary file x\n$`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if _, err := exec.LookPath("setsid"); err != nil && strings.Contains(c.command, "setsid") {
				c.command = strings.Replace(c.command, "setsid ", "", 1) // not on macOS
			}
			code, out := leftovers(t, c.command)
			if code != c.code || !regexp.MustCompile(c.out).MatchString(out) {
				t.Errorf("exit %d and %q, want %d and %s", code, out, c.code, c.out)
			}
			if pid := regexp.MustCompile(`process (\d+)`).FindStringSubmatch(out); pid != nil {
				if n, err := strconv.Atoi(pid[1]); err != nil || !ended(t, n) {
					t.Errorf("process %s was not ended: %v", pid[1], err)
				}
			}
		})
	}
}
