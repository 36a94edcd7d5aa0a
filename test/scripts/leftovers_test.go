//go:build linux || darwin

// Package scripts has the tests of the scripts that the test command relies on.
package scripts

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
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
				// Its parent may not have waited for it yet.
				stat, _ := exec.CommandContext(t.Context(), "ps", "-o", "stat=", "-p", pid[1]).Output()
				if state := strings.TrimSpace(string(stat)); state != "" && !strings.HasPrefix(state, "Z") {
					t.Errorf("process %s was not ended: %s", pid[1], state)
				}
			}
		})
	}
}
