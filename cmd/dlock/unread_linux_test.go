package main

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A watch whose reader has stopped to read ends with the first signal.
func TestWatchUnread(t *testing.T) {
	t.Parallel()
	backend := files(t)
	for i := range 12 {
		holds(t, backend, "ann", strings.Repeat("k", 200)+fmt.Sprint(i))
	}
	for _, flag := range []string{"--json", "--interval=1s"} {
		for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGHUP, syscall.SIGINT} {
			r, w, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			if _, err := unix.FcntlInt(w.Fd(), unix.F_SETPIPE_SZ, 4096); err != nil { // less than what is to be written
				t.Fatal(err)
			}
			cmd := command(backend, "watch", flag)
			cmd.Stdout = w
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			_ = w.Close()
			stuck := time.AfterFunc(time.Minute, func() { _ = cmd.Process.Kill() })
			if _, err := bufio.NewReaderSize(r, 16).ReadSlice('"'); err != nil && !errors.Is(err, bufio.ErrBufferFull) {
				t.Fatal(err)
			}
			_ = cmd.Process.Signal(sig)
			_ = cmd.Wait()
			stuck.Stop()
			_ = r.Close()
			want := 128 + int(sig)
			if sig == syscall.SIGINT {
				want = 0
			}
			if code := cmd.ProcessState.ExitCode(); code != want {
				t.Errorf("%s, %v: %v", flag, sig, cmd.ProcessState)
			}
		}
	}
}

// A run whose standard error is not read ends with the first signal: with a log, and while it waits.
func TestRunUnread(t *testing.T) {
	t.Parallel()
	backend, dir := theRedis.backend(t), t.TempDir()
	holder := wrap(t, backend, "obedient", filepath.Join(dir, "w"), "k")
	holder.says(t, "ready")
	long := reportsAfter(t, backend)
	for _, tc := range []struct {
		flag, key string
		code      int
	}{{"-v", "free", 7}, {"--quiet=false", "k", 128 + int(syscall.SIGTERM)}, {"-v", "k", 128 + int(syscall.SIGTERM)}} {
		_, w := fullPipe(t)
		witness := filepath.Join(dir, "w"+tc.key)
		cmd := command(backend, "run", tc.flag, tc.key, "--", os.Args[0], witness)
		cmd.Env = append(cmd.Env, childMode+"=obedient", impatient)
		cmd.Stderr = w
		out, err := cmd.StdoutPipe()
		if err == nil {
			err = cmd.Start()
		}
		_ = w.Close()
		if err != nil {
			t.Fatal(err)
		}
		stuck := time.AfterFunc(time.Minute, func() { _ = cmd.Process.Kill() })
		if tc.key == "free" {
			_, _ = bufio.NewReader(out).ReadString('\n')
		} else {
			queued(t, backend, "k", 1)
			time.Sleep(3 * long) // no event shows that it reports into a full pipe
		}
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
		stuck.Stop()
		killChild(witness)
		if code := cmd.ProcessState.ExitCode(); code != tc.code {
			t.Errorf("%s %s: %v", tc.flag, tc.key, cmd.ProcessState)
		}
	}
}

// Output that cannot be written is an error, of every command.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	backend := files(t)
	quick := []string{"bench", "--quiet", "--clients", "2", "--section", "0", "--duration", "50ms"}
	for _, args := range [][]string{
		{"version"},
		{"version", "--json"},
		{"--version"},
		{"help"},
		{"run", "--help"},
		{"completion", "bash"},
		{"completion", "zsh"},
		{"completion", "fish"},
		{"completion"},
		{"ls"},
		{"doctor"},
		quick, append(quick, "--json"),
	} {
		full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		var errs strings.Builder
		cmd := command(backend, args...)
		cmd.Stdout, cmd.Stderr = full, &errs
		_ = cmd.Run()
		_ = full.Close()
		if code := cmd.ProcessState.ExitCode(); code != 74 || !strings.Contains(errs.String(), "no space left") || strings.Count(errs.String(), "\n") != 1 {
			t.Errorf("%q: exit %d, %s", args, code, errs.String())
		}
	}
	if _, errs, code := dlock(t, backend, append(quick, "--html", "/dev/full")...); code != 74 || !strings.Contains(errs, "no space left") {
		t.Errorf("--html: exit %d, %s", code, errs)
	}
}

// A number without a unit means seconds, for every command.
func TestSecondsWithoutAUnit(t *testing.T) {
	t.Parallel()
	backend := files(t)
	for _, args := range [][]string{{"doctor", "--ttl", "10"}, {"bench", "--quiet", "--clients", "2", "--section", "0", "--duration", "0.05"}} {
		if _, errs, code := dlock(t, backend, args...); code != 0 {
			t.Errorf("%q: exit %d, %s", args, code, errs)
		}
	}
	for _, args := range [][]string{{"watch", "-i", "0.05"}, {"ui", "--interval", "0.001"}} { // refused for what it means
		if _, errs, code := dlock(t, backend, args...); code != 64 || !strings.Contains(errs, "interval "+map[string]string{"watch": "50ms", "ui": "1ms"}[args[0]]) {
			t.Errorf("%q: exit %d, %s", args, code, errs)
		}
	}
}
