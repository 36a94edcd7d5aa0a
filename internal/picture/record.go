//go:build unix

package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"

	"github.com/creack/pty"
)

// scene is what is typed. The first command holds the lock until the last one has ended. The shell has both ends of
// the pipes open, and the first command says there that it has ended, so nothing waits for a command that fails.
const scene = `type() { printf '$ %s\n' "$1"; eval "$1"; }
mkfifo ready end
exec 3<>ready 4<>end
dlock() { command dlock "$@"; echo ended >&3; }
type 'dlock run nightly -- ./report.sh &'
unset -f dlock
read state <&3
[ "$state" = ready ] || exit 1
type 'dlock ls'
type 'dlock run --try nightly -- ./report.sh; echo "exit $?"'
echo >&4
wait`

const report = `#!/bin/sh
echo "report.sh: writing with fencing token $DLOCK_TOKEN"
echo ready >ready
read _ <end
`

// wide is a terminal that cuts nothing: the longest name of a host has 64 characters, and is replaced.
const wide = 250

// build builds dlock in a folder.
func build(dir string) error {
	out, err := exec.Command("go", "build", "-tags", "filesonly", "-ldflags=-w", "-o", dir, "github.com/ceyewan/genesis/cmd/dlock").CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

// record plays the scene with the dlock of a folder, and returns what a terminal got. Without a backend, it uses files
// of its own.
func record(program, backend string) (string, error) {
	dir, err := os.MkdirTemp("", "dlock-picture-")
	if err != nil {
		return "", err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	if err := os.WriteFile(filepath.Join(dir, "report.sh"), []byte(report), 0o755); err != nil {
		return "", err
	}
	if backend == "" {
		backend = "file://" + dir + "/locks"
	}
	cmd := exec.Command("sh", "-c", scene)
	cmd.Dir = dir
	cmd.Env = []string{"PATH=" + program + ":" + os.Getenv("PATH"), "TERM=xterm", "USER=ann", "DLOCK_BACKEND=" + backend}
	terminal, err := pty.StartWithSize(cmd, &pty.Winsize{Rows: 30, Cols: wide})
	if err != nil {
		return "", err
	}
	text, err := io.ReadAll(terminal)
	if errors.Is(err, syscall.EIO) { // how Linux reports that the last process has closed its terminal
		err = nil
	}
	err = errors.Join(err, cmd.Wait(), terminal.Close())
	host, _ := os.Hostname()
	return always(strings.ReplaceAll(string(text), "\r\n", "\n"), host), err
}

// What differs from run to run, and what the picture shows for it.
var changing = []struct {
	what *regexp.Regexp
	by   string
}{
	{regexp.MustCompile(`pid \d+`), "pid 4711"},
	{regexp.MustCompile(`\b\d{16}\b`), "1794912668456173"},
	{regexp.MustCompile(`for [\d.]+(µs|ms|s)`), "for 12s"},
	{regexp.MustCompile(`(?m)( +)[\d.]+(µs|ms|s)( +\S+-\S+ +\S+-\S+)$`), "${1}12s${3}"},
}

// always makes the text the same in every run.
func always(text, host string) string {
	text = strings.ReplaceAll(text, "ann@"+host, "ann@web-1")
	for _, c := range changing {
		text = c.what.ReplaceAllString(text, c.by)
	}
	return align(text)
}

// align makes the columns of the table as wide as what is in them now. The first three are flush left.
func align(text string) string {
	lines := strings.Split(text, "\n")
	for i := range len(lines) - 1 {
		if !strings.Contains(lines[i], "HOLDER") {
			continue
		}
		gap := regexp.MustCompile(` {2,}`)
		head, row := gap.Split(lines[i], -1), gap.Split(lines[i+1], -1)
		for c := range min(len(head), len(row)) {
			width := max(visible(head[c]), visible(row[c]))
			head[c], row[c] = pad(head[c], width, c > 2), pad(row[c], width, c > 2)
		}
		lines[i], lines[i+1] = strings.Join(head, "  "), strings.Join(row, "  ")
	}
	return strings.Join(lines, "\n")
}

var sgr = regexp.MustCompile("\x1b\\[([0-9;]*)m")

func visible(s string) int { return len([]rune(sgr.ReplaceAllString(s, ""))) }

func pad(s string, width int, right bool) string {
	blanks := strings.Repeat(" ", width-visible(s))
	if right {
		return blanks + s
	}
	return s + blanks
}
