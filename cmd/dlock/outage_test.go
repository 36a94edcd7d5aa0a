//go:build unix

package main

import (
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ceyewan/genesis/internal/testenv"
)

// A wait without a limit outlives a server that is away for a while, as in a restart or a failover, and says so at once.
func TestWaitOutlivesAnOutage(t *testing.T) {
	t.Parallel()
	onLeases(t, func(t *testing.T, l *lease) {
		witness := filepath.Join(t.TempDir(), "w")
		holder := wrap(t, l.backend, "obedient", witness, "k")
		holder.says(t, "ready")
		next := wrap(t, l.faulty, "brief", witness, "--json", "--ttl", "10m", "k")
		awaitEvent(t, next, "waiting")
		l.proxy.Refuse(true)
		l.proxy.Cut()
		awaitEvent(t, next, "retrying")
		time.Sleep(12 * time.Second) // ten failures in a row took a few seconds
		l.proxy.Heal()
		_ = holder.Process.Signal(syscall.SIGTERM)
		next.says(t, "alone")
		if code := next.ends(t); code != 0 {
			t.Errorf("exit %d, %s", code, next.stderr.String())
		}
	})
}

// A wait ends if the backend has failed for one TTL. Nothing is said of a lock that it never had.
func TestWaitEndsWithTheBackend(t *testing.T) {
	t.Parallel()
	onLeases(t, func(t *testing.T, l *lease) {
		witness := filepath.Join(t.TempDir(), "w")
		holder := wrap(t, l.backend, "obedient", witness, "k")
		holder.says(t, "ready")
		began := time.Now()
		next := wrap(t, l.faulty, "brief", witness, graciously("k")...)
		queued(t, l.backend, "k", 1)
		before := strings.Count(next.stderr.String(), "trying again")
		if before > 0 && !testenv.Stalled(t, began, time.Second) {
			t.Errorf("it has failed before the server is away: %s", next.stderr.String())
		}
		l.proxy.Refuse(true)
		l.proxy.Cut()
		code, errs := next.ends(t), next.stderr.String()
		if code != 69 || strings.Count(errs, "trying again") != before+1 || !strings.Contains(errs, "the backend has failed for ") || strings.Contains(errs, "may stay") {
			t.Errorf("exit %d, %s", code, errs)
		}
	})
}

// A release that is not answered is reported by one line.
func TestReleaseIsReportedOnce(t *testing.T) {
	t.Parallel()
	onLeases(t, func(t *testing.T, l *lease) {
		holder := wrap(t, l.faulty, "obedient", filepath.Join(t.TempDir(), "w"), "k")
		holder.says(t, "ready")
		l.proxy.BlackHole(true)
		_ = holder.Process.Signal(syscall.SIGTERM)
		code, errs := holder.ends(t), holder.stderr.String()
		if code != 7 || strings.Count(errs, "may stay") != 1 || strings.Count(errs, "\n") != 1 {
			t.Errorf("exit %d, %s", code, errs)
		}
	})
}
