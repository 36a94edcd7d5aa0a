//go:build unix

package docs_test

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/ceyewan/genesis/internal/docscan"
	"github.com/ceyewan/genesis/internal/testenv"
)

// A shell runs scripts of the documents, with stand-ins for the programs that they run under a lock.
type shell struct {
	path  string // of dlock and the stand-ins
	redis string // the address of a server
	n     atomic.Int64
}

// standIns replace commands of the documents that would take long or change this machine. The one
// called command checks that the lock is held.
var standIns = map[string]string{
	"tar": "exit 0", "make": "exit 0", "report.sh": "exit 0", "read.sh": "exit 0", "train.sh": "exit 0",
	"command": `dlock run --wait 8s "${key:-order:1}" -- true; test $? = 75`,
}

func newShell(t *testing.T) *shell {
	t.Helper()
	s := &shell{path: t.TempDir(), redis: testenv.Redis(t).Addr()}
	err := os.Symlink(built(t).dlock, filepath.Join(s.path, "dlock"))
	for name, text := range standIns {
		err = errors.Join(err, os.WriteFile(filepath.Join(s.path, name), []byte("#!/bin/sh\n"+text+"\n"), 0o700))
	}
	if err != nil {
		t.Fatal(err)
	}
	return s
}

var (
	aboutLocks = regexp.MustCompile(`dlock (ls|show|watch|evict|doctor)\b`)
	heldKey    = regexp.MustCompile(`\bdeploy(:web)?\b`)
	someRedis  = regexp.MustCompile(`redis://[a-z.]+`)
)

// command prepares a script. Locks are files, or on Redis if operators look at them.
func (s *shell) command(t *testing.T, script string) *exec.Cmd {
	t.Helper()
	redis := fmt.Sprintf("redis://%s?prefix=%d:", s.redis, s.n.Add(1))
	cmd := exec.CommandContext(t.Context(), "bash", "-e", "-o", "pipefail", "-c", someRedis.ReplaceAllString(script, redis))
	cmd.Dir = t.TempDir()
	backend := "file://" + filepath.Join(cmd.Dir, "locks")
	if aboutLocks.MatchString(script) {
		backend = redis
	}
	here, err := filepath.Abs(root)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"report.sh", "read.sh", "train.sh"} {
		err = errors.Join(err, os.Symlink(filepath.Join(s.path, name), filepath.Join(cmd.Dir, name)))
	}
	if err != nil {
		t.Fatal(err)
	}
	makes, _ := exec.LookPath("make") // the documents mean this one, except under a lock
	cmd.Env = append(os.Environ(), "PATH="+s.path+":"+os.Getenv("PATH"), "DLOCK_BACKEND="+backend, "DLOCK_CONFIG=", "DLOCK_PASSWORD=",
		"root="+here, "make="+cmp.Or(makes, "true"))
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	return cmd
}

// hold takes the locks that a script is about, until the test ends or the function is called.
func (s *shell) hold(t *testing.T, script string, env []string) (release func()) {
	t.Helper()
	if !aboutLocks.MatchString(script) {
		return func() {}
	}
	key := cmp.Or(heldKey.FindString(script), "deploy")
	cmd := exec.CommandContext(t.Context(), filepath.Join(s.path, "dlock"), "run", "-q", key, "--", "sh", "-c", "echo held; exec cat")
	cmd.Env = env
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	in, err1 := cmd.StdinPipe()
	out, err2 := cmd.StdoutPipe()
	err := errors.Join(err1, err2)
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	stuck := time.AfterFunc(scriptLimit, func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) })
	line, _ := bufio.NewReader(out).ReadString('\n')
	if line != "held\n" {
		t.Errorf("no holder of %s: %q", key, line)
	}
	release = sync.OnceFunc(func() {
		_ = in.Close()
		_ = cmd.Wait() // it fails where it is evicted
		if !stuck.Stop() {
			t.Errorf("the holder of %s has not ended within %v", key, scriptLimit)
		}
	})
	t.Cleanup(release)
	return release
}

// needTools skips the test if a tool of the script is not installed. dlock needs none of them.
func needTools(t *testing.T, script string) {
	t.Helper()
	for _, tool := range []string{"jq", "flock", "git"} {
		_, err := exec.LookPath(tool)
		if err != nil && regexp.MustCompile(`(^|[ |])`+tool+` `).MatchString(script) {
			t.Skip(tool + " is not installed")
		}
	}
}

// scriptLimit is for scripts of several commands, each of which waits for seconds at most.
const scriptLimit = 5 * time.Minute

// run runs a script to its end and returns what it prints.
func (s *shell) run(t *testing.T, script string) string {
	t.Helper()
	needTools(t, script)
	cmd := s.command(t, script)
	release := s.hold(t, script, cmd.Env)
	if strings.Contains(script, "dlock watch") && !strings.Contains(script, "--help") {
		return watch(t, cmd, release)
	}
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	cmd.WaitDelay = scriptLimit // for what it leaves behind, which has the pipes
	err := cmd.Start()
	if err != nil {
		t.Fatal(err)
	}
	stuck := time.AfterFunc(scriptLimit, func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) })
	err = cmd.Wait()
	if !stuck.Stop() {
		t.Errorf("it has not ended within %v", scriptLimit)
	}
	want := 0
	if strings.HasPrefix(script, "dlock evict") && !strings.Contains(script, "--yes") && !strings.Contains(script, "--help") {
		want = 64 // it cannot ask here
	}
	if cmd.ProcessState.ExitCode() != want {
		t.Errorf("%s\n%v\n%s%s", script, err, &out, &errs)
	}
	return out.String()
}

// watch runs a script that does not end, until it has printed a line.
func watch(t *testing.T, cmd *exec.Cmd, release func()) string {
	t.Helper()
	script := &cmd.Args[len(cmd.Args)-1]
	*script = strings.Replace(*script, "| jq ", "| tee seen | jq --unbuffered ", 1) // not a terminal
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	stop := time.AfterFunc(time.Minute, func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) })
	defer stop.Stop()
	in := bufio.NewReader(out)
	if strings.Contains(*script, "free") {
		testenv.Eventually(t, time.Minute, "watch sees the holder", func() bool {
			seen, err := os.ReadFile(filepath.Join(cmd.Dir, "seen"))
			return err == nil && len(seen) > 0
		})
		release()
	}
	line, err := in.ReadString('\n')
	if err != nil {
		t.Errorf("%s prints %q: %v", *script, line, err)
	}
	_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGINT)
	_ = cmd.Wait()
	return line
}

// Every command of the documents and of the help texts is run, or is checked if it cannot be. The
// commands of a block run together.
func TestCommands(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	done := map[string]bool{}
	run := func(t *testing.T, name string, check func(*testing.T, string), commands ...docscan.Command) {
		t.Helper()
		var script strings.Builder
		for _, c := range commands {
			text, err := translate(c)
			if err != nil {
				t.Error(err)
			}
			if text != "" {
				script.WriteString(text + "\n")
			}
		}
		if script.Len() == 0 || done[script.String()] {
			return
		}
		done[script.String()] = true
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			check(t, s.run(t, script.String()))
		})
	}
	for _, b := range append(blocksOf(t, "sh"), blocksOf(t, "console")...) {
		if b.Lang == "console" && len(b.Commands()) == 0 {
			t.Errorf("%s has no command. Output alone is text", b)
		}
		run(t, b.String(), func(t *testing.T, out string) { compare(t, b, out) }, b.Commands()...)
	}
	all, err := allCommands()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range append(all, s.help(t)...) {
		if c.Span || c.Page == help {
			run(t, c.String(), func(*testing.T, string) {}, c)
		}
	}
}

var (
	headings = regexp.MustCompile(`(?m)^ *[A-Z]+(?: +[A-Z]+)+$`)
	finding  = regexp.MustCompile(`(?m)^(ok|warning|unsafe) +(\S+) +(.*)$`)
	sentence = regexp.MustCompile(`(?m)^[A-Z][a-z]+ .*(?:\.|\?)`)
	quantity = regexp.MustCompile(`[0-9][0-9.]*[a-zµ]*`)
)

// compare checks what a console block shows: the headings of the first table, the findings, and the
// sentences. Names and times are of another machine.
func compare(t *testing.T, b docscan.Block, out string) {
	t.Helper()
	if b.Lang != "console" {
		return
	}
	heading := headings.FindString(b.Text)
	if strings.Join(strings.Fields(heading), " ") != strings.Join(strings.Fields(headings.FindString(out)), " ") {
		t.Errorf("%s has the headings %q, dlock prints\n%s", b, heading, out)
	}
	shown, real := finding.FindAllStringSubmatch(b.Text, -1), finding.FindAllStringSubmatch(out, -1)
	for i := range max(len(shown), len(real)) {
		if i >= len(shown) || i >= len(real) || !alike(shown[i], real[i]) {
			t.Errorf("%s has %q, dlock prints\n%s", b, shown, out)
			break
		}
	}
	for _, text := range sentence.FindAllString(b.Text, -1) {
		if !inSource("internal/cli", text) {
			t.Errorf("%s: nothing prints %q", b, text)
		}
	}
}

// alike compares two findings. Where one is a fault, the other may be none.
func alike(a, b []string) bool {
	return a[2] == b[2] && (a[1] != b[1] || quantity.ReplaceAllString(a[3], "N") == quantity.ReplaceAllString(b[3], "N"))
}

// help is the page of the commands of the help texts.
const help = "dlock help"

// help returns the examples of the help texts.
func (s *shell) help(t *testing.T) (commands []docscan.Command) {
	t.Helper()
	text := s.run(t, "for c in '' run ls show watch evict doctor bench; do dlock help $c; done")
	_, text, found := strings.Cut(text, "\nExamples:\n")
	for found {
		var examples string
		examples, text, _ = strings.Cut(text, "\n\n")
		commands = append(commands, docscan.Block{Page: help, Lang: "sh", Text: examples}.Commands()...)
		_, text, found = strings.Cut(text, "\nExamples:\n")
	}
	if len(commands) < 20 {
		t.Errorf("the help texts have %d examples, there were more than 20", len(commands))
	}
	return commands
}
