//go:build unix

package main

import (
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// A job that is over sooner keeps the lock, so that the others find it taken.
func TestRunMinHold(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, backend, name string) {
		began := time.Now()
		if _, errs, code := dlock(t, backend, "run", "--min-hold", "8s", "k", "--", "true"); code != 0 || errs != "" {
			t.Errorf("exit %d, %s", code, errs)
		}
		took := time.Since(began)
		if name == "file" && took < 8*time.Second { // no lease: the command has to stay
			t.Errorf("the lock was released after %v", took)
		}
		if name != "file" && took < 7*time.Second { // else the machine was too slow to tell
			if _, errs, code := dlock(t, backend, "run", "--try", "k", "--", "true"); code != 75 && time.Since(began) < 8*time.Second {
				t.Errorf("the lock is free after %v: exit %d, %s", time.Since(began), code, errs)
			}
		}
		if _, errs, code := dlock(t, backend, "run", "--wait", "2m", "k", "--", "true"); code != 0 || time.Since(began) < 8*time.Second {
			t.Errorf("after %v: exit %d, %s", time.Since(began), code, errs)
		}
	})
}

// The process ends with its command, and leaves the lock to its lease, however long: a cron job does not hang. The lock
// is shown, and can be taken away.
func TestRunLeavesTheLockToItsLease(t *testing.T) {
	t.Parallel()
	onLeases(t, func(t *testing.T, l *lease) {
		const minHold = 10 * time.Minute
		for i, flag := range []string{"--quiet", "--shared", "--permits=2"} {
			key, began := flag[2:5], time.Now()
			_, errs, code := dlock(t, l.backend, "run", "--min-hold", minHold.String(), "--ttl", "15s", flag, key, "--", "sh", "-c", "exit "+strconv.Itoa(i))
			if took := time.Since(began); code != i || errs != "" || took > minHold/2 {
				t.Fatalf("%s: exit %d after %v, %s", flag, code, took, errs)
			}
			s := seen(t, l.backend, key)
			if len(s.Holders) != 1 || s.Holders[0].Left == nil || *s.Holders[0].Left < (minHold/2).Seconds() || *s.Holders[0].Left > minHold.Seconds() {
				t.Fatalf("%s: %+v", flag, s)
			}
			if _, errs, code := dlock(t, l.backend, "run", "--try", key, "--", "true"); code != 75 {
				t.Errorf("%s: exit %d, %s", flag, code, errs)
			}
			if _, errs, code := dlock(t, l.backend, "evict", "--yes", "--token", strconv.FormatInt(s.Token, 10), key); code != 0 {
				t.Errorf("%s: evict: exit %d, %s", flag, code, errs)
			}
			if _, errs, code := dlock(t, l.backend, "run", "--try", key, "--", "true"); code != 0 {
				t.Errorf("%s: after evict: exit %d, %s", flag, code, errs)
			}
		}
	})
}

// A file has no lease, so the process stays. A signal ends that, and the command's own exit code counts.
func TestSignalEndsTheMinHold(t *testing.T) {
	t.Parallel()
	backend := files(t)
	w := &wrapped{Cmd: command(backend, "run", "--json", "--min-hold", "10m", "k", "--", "sh", "-c", "exit 3")}
	w.Stderr = &w.stderr
	if err := w.Start(); err != nil {
		t.Fatal(err)
	}
	awaitEvent(t, w, "ended")
	if s := seen(t, backend, "k"); len(s.Holders) != 1 || s.Holders[0].PID != w.Process.Pid {
		t.Errorf("%+v", s)
	}
	_ = w.Process.Signal(syscall.SIGUSR1) // it asks nobody to end
	_ = w.Process.Signal(syscall.SIGTERM)
	_ = w.Wait()
	if code := w.ProcessState.ExitCode(); code != 3 || strings.Contains(w.stderr.String(), "failed") {
		t.Errorf("exit %d, %s", code, w.stderr.String())
	}
	if _, errs, code := dlock(t, backend, "run", "--try", "k", "--", "true"); code != 0 {
		t.Errorf("exit %d, %s", code, errs)
	}
}
