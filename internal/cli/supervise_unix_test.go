//go:build unix

package cli

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ceyewan/genesis/pkg/clog"
	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/memlock"
)

// A command that is not ended though its lock is about to be lost, or that was killed just before,
// is not looked at all the time.
func TestLookPauses(t *testing.T) {
	t.Parallel()
	for _, s := range []*supervisor{{}, {killAt: time.Now(), killed: true}} {
		s.run = newRun(t, memlock.New(), clog.Logger{})
		s.onLost, s.grace = "warn", s.ttl
		var err error
		if s.guard, err = s.client.Acquire(t.Context(), "k", dlock.WithTTL(s.ttl), dlock.WithoutRenewal()); err != nil {
			t.Fatal(err)
		}
		if pause := s.look(); pause < s.ttl/10 {
			t.Errorf("killed %t: the next look is in %v", s.killed, pause)
		}
	}
}

// A command that cannot be killed, as that of sudo, is not said to be ended.
func TestUnkilled(t *testing.T) {
	t.Parallel()
	for want, refusal := range map[string]error{"was ended": syscall.ESRCH, "could not be killed": syscall.EPERM} {
		said := new(bytes.Buffer)
		s := &supervisor{
			run: newRun(t, memlock.New(), clog.Logger{}), why: errors.New("it took too long"), killAt: time.Now(),
			child: &child{pid: 1 << 30, send: func(int, syscall.Signal) error { return refusal }},
		}
		if err := s.acquire(nil); err != nil {
			t.Fatal(err)
		}
		s.reporter.events, s.reporter.quiet = said, false
		s.look()
		_, err := s.result(0)
		if told := strings.Contains(said.String(), "cannot be killed"); codeOf(err) != ExitLost || !strings.Contains(err.Error(), want) || told != errors.Is(refusal, syscall.EPERM) {
			t.Errorf("%v: %v, and it says %q", refusal, err, said)
		}
	}
}

// startable is a run of a command that holds its lock. Its lease is not renewed.
func startable(t *testing.T, store *memlock.Store, ttl time.Duration, script string) *run {
	t.Helper()
	r := newRun(t, store, clog.Logger{})
	r.stdin, r.stdout, r.stderr = os.Stdin, os.Stdout, os.Stderr
	r.Backend = &Backend{Name: "memory", Opener: store}
	r.signals, r.grace, r.ttl = make(chan os.Signal, 1), time.Hour, ttl
	r.args = []string{"sh", "-c", script}
	var err error
	if r.path, err = find("sh"); err != nil {
		t.Fatal(err)
	}
	if r.guard, err = r.client.Acquire(t.Context(), r.key, dlock.WithTTL(ttl), dlock.WithoutRenewal()); err != nil {
		t.Fatal(err)
	}
	return r
}

// A lock may be lost before the command is started, as while dlock is stopped. The command must not run then, whatever
// it is to do if the lock is lost later.
func TestLostBeforeTheStart(t *testing.T) {
	t.Parallel()
	for _, onLost := range []string{"kill", "warn"} {
		for _, how := range []string{"evicted", "expired"} {
			t.Run(onLost+" "+how, func(t *testing.T) {
				t.Parallel()
				ttl, store, trace := time.Hour, memlock.New(), filepath.Join(t.TempDir(), "trace")
				if how == "expired" {
					ttl = time.Second
				}
				r := startable(t, store, ttl, "> "+trace)
				r.onLost = onLost
				if how == "evicted" {
					evict(t, r, store)
				}
				<-r.guard.Done()
				_, err := r.supervise(nil)
				if codeOf(err) != ExitLost || !errors.Is(err, dlock.ErrOwnershipLost) || !strings.Contains(err.Error(), "before the command was started") {
					t.Errorf("code %d: %v", codeOf(err), err)
				}
				if _, err := os.Stat(trace); err == nil {
					t.Error("the command ran")
				}
			})
		}
	}
}

// A lock that has run out by the time of the first look, as if dlock was stopped during the start, may have passed on: the
// command is killed at once. One that was taken away leaves it the grace period.
func TestLostDuringTheStart(t *testing.T) {
	t.Parallel()
	for how, want := range map[string]syscall.Signal{"evicted": syscall.SIGTERM, "expired": syscall.SIGKILL} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			ttl, store := time.Hour, memlock.New()
			if how == "expired" {
				ttl = 5 * time.Second // more than the start takes
			}
			s := &supervisor{run: startable(t, store, ttl, "exec sleep 3600")}
			if err := s.start(); err != nil {
				t.Fatal(err)
			}
			if how == "evicted" {
				evict(t, s.run, store)
			}
			<-s.guard.Done()
			s.lost()
			s.look()
			if code := <-s.child.ended; code != exitSignal+int(want) {
				t.Errorf("the command's exit is %d", code)
			}
		})
	}
}
