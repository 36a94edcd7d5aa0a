//go:build unix

package main

import (
	"bufio"
	"encoding/json"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ceyewan/genesis/internal/testenv"
)

// A job runs once per interval; others skip, and say who ran it, with which result, and when the next is due.
func TestEvery(t *testing.T) {
	t.Parallel()
	onServers(t, func(t *testing.T, backend string) {
		out, errs, code := dlock(t, backend, "run", "--every", "1h", "job", "--", "echo", "hello")
		if code != 0 || out != "hello\n" || errs != "" {
			t.Fatalf("exit %d, %q, %q", code, out, errs)
		}
		out, errs, code = dlock(t, backend, "run", "--every", "1h", "job", "--", "echo", "hello")
		if code != 0 || out != "" {
			t.Errorf("again: exit %d, %q", code, out)
		}
		if !regexp.MustCompile(`^dlock: skipped: ran \S+ ago by \S+ pid \d+, ok in \S+; next in 5\dm\S+\n$`).MatchString(errs) {
			t.Errorf("it says %q", errs)
		}
		out, errs, code = dlock(t, backend, "run", "-q", "-E", "42", "--every", "1h", "job", "--", "echo", "hello")
		if code != 42 || out != "" || errs != "" {
			t.Errorf("quiet: exit %d, %q, %q", code, out, errs)
		}
		_, errs, _ = dlock(t, backend, "run", "--json", "--every", "1h", "job", "--", "echo", "hello")
		var skipped struct {
			Event string
			Next  float64   `json:"next_in_seconds"`
			Last  *shownRun `json:"last_run"`
		}
		if err := json.Unmarshal([]byte(errs), &skipped); err != nil || skipped.Event != "skipped" || skipped.Next < 1000 || skipped.Last == nil || !skipped.Last.OK {
			t.Errorf("as JSON: %v, %q", err, errs)
		}
		last := seen(t, backend, "job").LastRun
		if last == nil || !last.OK || last.PID == 0 || last.Host == "" || time.Since(last.Ended) > time.Hour {
			t.Errorf("show has %+v", last)
		}
		out, _, _ = dlock(t, backend, "show", "job")
		contains(t, out, "TOKEN", "last run: ran ", ", ok in ")
		if runs := seen(t, backend, "job:runs"); len(runs.Holders) != 1 || !strings.HasPrefix(runs.Holders[0].Purpose, "ok in ") {
			t.Errorf("the runs are %+v", runs)
		}
	})
}

// A command that fails counts as run, unless --retry says otherwise; its code is the exit code, and recorded.
func TestEveryFails(t *testing.T) {
	t.Parallel()
	backend := theRedis.backend(t)
	for range 3 {
		if _, errs, code := dlock(t, backend, "run", "--every", "1h", "--retry", "again", "--", "sh", "-c", "exit 3"); code != 3 || errs != "" {
			t.Errorf("exit %d, %q", code, errs)
		}
	}
	out, _, _ := dlock(t, backend, "show", "again")
	contains(t, out, "again is free", "failed in ", ": exit status 3")
	if runs := seen(t, backend, "again:runs"); len(runs.Holders) != 3 {
		t.Errorf("the runs are %+v", runs)
	}
	if _, _, code := dlock(t, backend, "run", "--every", "1h", "job", "--", "sh", "-c", "exit 3"); code != 3 {
		t.Errorf("exit %d", code)
	}
	_, errs, code := dlock(t, backend, "run", "--every", "1h", "job", "--", "true")
	if code != 0 {
		t.Errorf("exit %d", code)
	}
	contains(t, errs, "failed in ", ": exit status 3; next in ")
}

// With --wait, it waits until the job is due.
func TestEveryWaits(t *testing.T) {
	t.Parallel()
	onServers(t, func(t *testing.T, backend string) {
		const every = 30 * time.Second // an attempt that takes a twentieth of it is given up
		begun := func() int64 {
			out, errs, code := dlock(t, backend, "run", "-q", "--every", every.String(), "--wait", "4m", "job", "--", "date", "+%s%N")
			at, err := strconv.ParseInt(strings.TrimSpace(out), 10, 64)
			if code != 0 || err != nil {
				t.Fatalf("exit %d, %q, %q", code, out, errs)
			}
			return at
		}
		before := begun()
		for range 2 {
			now := begun()
			if gap := time.Duration(now - before); gap < every/4 { // without the hold, it would be milliseconds
				t.Errorf("the next run began after %v", gap)
			}
			before = now
		}
	})
}

// After dlock and its command were killed, the interval still counts.
func TestEveryIsKilled(t *testing.T) {
	t.Parallel()
	onServers(t, func(t *testing.T, backend string) {
		cmd := command(backend, "run", "--every", "1h", "job", "--", "sh", "-c", "echo began; exec sleep 600")
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		child := testenv.Child(t, cmd)
		if line, err := bufio.NewReader(out).ReadString('\n'); line != "began\n" {
			t.Fatalf("%q, %v", line, err)
		}
		child.Kill()
		stdout, errs, code := dlock(t, backend, "run", "--every", "1h", "job", "--", "echo", "hello")
		if code != 0 || stdout != "" {
			t.Errorf("exit %d, %q", code, stdout)
		}
		contains(t, errs, "skipped: began ", " and has not ended; next in 5")
		if last := seen(t, backend, "job").LastRun; last != nil {
			t.Errorf("the last run is %+v", last)
		}
	})
}

// What cannot be combined is refused before anything is done.
func TestEveryUsage(t *testing.T) {
	t.Parallel()
	backend := theRedis.backend(t)
	for _, args := range []string{
		"--every 0", "--every -1s", "--every 25h", "--every soon", "--retry", "--every 1h --try", "--every 1h --shared",
		"--every 1h --permits 2", "--every 1h --min-hold 1s", "--every 10s --ttl 20s",
	} {
		out, errs, code := dlock(t, backend, append(append([]string{"run"}, strings.Fields(args)...), "job", "--", "echo", "hello")...)
		if code != 64 || out != "" || errs == "" {
			t.Errorf("%s: exit %d, %q, %q", args, code, out, errs)
		}
	}
	_, errs, code := dlock(t, files(t), "run", "--every", "1h", "job", "--", "echo", "hello")
	if code != 64 {
		t.Errorf("on files: exit %d", code)
	}
	contains(t, errs, "leases")
}

// A signal ends the wait until the job is due, and reaches the command while it runs.
func TestEverySignal(t *testing.T) {
	t.Parallel()
	backend := theRedis.backend(t)
	running := command(backend, "run", "--every", "1h", "job", "--", "sh", "-c", "trap 'exit 7' TERM; echo began; while :; do sleep 0.1; done")
	out, err := running.StdoutPipe()
	if err == nil {
		err = running.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = running.Process.Kill() }) // unless it has ended
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "began\n" {
		t.Errorf("%q, %v", line, err)
	}
	waiting := command(backend, "run", "--every", "1h", "--wait", "10m", "job", "--", "echo", "hello")
	if err := waiting.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = waiting.Process.Kill() })
	queued(t, backend, "job", 1)
	for cmd, want := range map[*exec.Cmd]int{waiting: 128 + int(syscall.SIGTERM), running: 7} {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
		if code := cmd.ProcessState.ExitCode(); code != want {
			t.Errorf("exit %d, not %d", code, want)
		}
	}
	if last := seen(t, backend, "job").LastRun; last == nil || last.Error != "exit status 7" {
		t.Errorf("the last run is %+v", last)
	}
}
