//go:build unix

package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"go.etcd.io/etcd/client/v3"

	"github.com/ceyewan/genesis/internal/cli"
	"github.com/ceyewan/genesis/internal/faultproxy"
	"github.com/ceyewan/genesis/internal/testenv"
)

// shortGrace is the grace period where the command is not meant to use it.
const shortGrace = 500 * time.Millisecond

// graciously gives the command time to obey, and dlock time to ask it to end, on a machine that stalls for seconds.
func graciously(key string) []string {
	return []string{"--ttl", graceTTL.String(), "--grace", "5s", key}
}

const graceTTL = 15 * time.Second

// reserved has the command killed so long before its lock passes on that it is dead by then on such a machine: a twentieth
// of the TTL.
func reserved(key string) []string {
	return []string{"--ttl", reservedTTL.String(), "--grace", testenv.UnderStress(reservedTTL/3, shortGrace).String(), key}
}

var reservedTTL = testenv.UnderStress(45*time.Second, 5*time.Second) // etcd counts in seconds

// longTTL is a lease whose end must not be what ends a command: less than half of it takes longer than any stall.
var longTTL = testenv.UnderStress(time.Minute, 12*time.Second)

// A lease is a backend with a server that can fail.
type lease struct {
	backend string            // past the proxy
	faulty  string            // through the proxy
	proxy   *faultproxy.Proxy // to the server
}

// onLeases runs a test that cuts itself off from its server, at most.
func onLeases(t *testing.T, test func(t *testing.T, l *lease)) {
	onServers(t, func(t *testing.T, backend string) {
		l := &lease{backend: backend}
		l.faulty, l.proxy = through(t, backend)
		test(t, l)
	})
}

// remove takes a lock away, as an operator would.
func (l *lease) remove(t *testing.T, key string) {
	t.Helper()
	u, err := cli.ParseURL(l.backend)
	if err != nil {
		t.Fatal(err)
	}
	key = u.Param("prefix") + key
	if u.Scheme == "redis" {
		client := redis.NewClient(&redis.Options{Addr: u.Hosts[0]})
		defer client.Close()
		if n, err := client.Del(t.Context(), key).Result(); n != 1 || err != nil {
			t.Fatalf("DEL: %d, %v", n, err)
		}
		return
	}
	client, err := clientv3.New(clientv3.Config{Endpoints: u.Hosts})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if r, err := client.Delete(t.Context(), key+"/", clientv3.WithPrefix()); err != nil || r.Deleted != 1 {
		t.Fatalf("delete: %v, %v", r, err)
	}
}

// A mortal server is one that a test may pause and kill.
type mortal interface {
	Pause() error
	Resume() error
	Kill() error
}

// onMortals runs a test on servers of its own.
func onMortals(t *testing.T, test func(t *testing.T, backend string, server mortal)) {
	t.Run("redis", func(t *testing.T) {
		t.Parallel()
		r := testenv.Redis(t)
		test(t, "redis://"+r.Addr(), r)
	})
	t.Run("etcd", func(t *testing.T) {
		t.Parallel()
		e := testenv.Etcd(t)
		test(t, "etcd://"+e.Addr(), e)
	})
}

// handOver asserts that the next holder finds no living process.
func handOver(t *testing.T, next, holder *wrapped) {
	t.Helper()
	next.says(t, "alone")
	if code := holder.ends(t); code != 76 || !strings.Contains(holder.stderr.String(), "could not be renewed") {
		t.Errorf("exit %d, %s", code, holder.stderr.String())
	}
	if code := next.ends(t); code != 0 {
		t.Errorf("the next one's exit is %d, %s", code, next.stderr.String())
	}
}

// times is how many commands are run at once, and how often.
func times() (width, rounds int) {
	if stress() {
		return 5, 20
	}
	return 3, 1
}

// If renewals fail, the command is dead before another can start: it ignores
// TERM, and has a child of its own.
func TestLostByBlackHole(t *testing.T) {
	t.Parallel()
	onLeases(t, func(t *testing.T, l *lease) {
		width, rounds := times()
		for range rounds {
			var holders, nexts []*wrapped
			for i := range width {
				key, witness := fmt.Sprint("k", i), filepath.Join(t.TempDir(), "w")
				h := wrap(t, l.faulty, "stubborn", witness, reserved(key)...)
				h.says(t, "ready")
				next := wrap(t, l.backend, "brief", witness, key)
				holders, nexts = append(holders, h), append(nexts, next)
			}
			l.proxy.BlackHole(true)
			for i := range width {
				handOver(t, nexts[i], holders[i])
			}
			l.proxy.Heal()
		}
	})
}

// The same with a server that does not answer for a while.
func TestLostByPause(t *testing.T) {
	t.Parallel()
	onMortals(t, func(t *testing.T, backend string, server mortal) {
		width, rounds := times()
		for range rounds {
			var holders []*wrapped
			var witnesses []string
			for i := range width {
				witness := filepath.Join(t.TempDir(), "w")
				h := wrap(t, backend, "stubborn", witness, reserved(fmt.Sprint("k", i))...)
				h.says(t, "ready")
				holders, witnesses = append(holders, h), append(witnesses, witness)
			}
			if err := server.Pause(); err != nil {
				t.Fatal(err)
			}
			for i := range width {
				diesWithin(t, witnesses[i], reservedTTL+busy)
			}
			if err := server.Resume(); err != nil {
				t.Fatal(err)
			}
			for i := range width {
				handOver(t, wrap(t, backend, "brief", witnesses[i], reserved(fmt.Sprint("k", i))...), holders[i])
			}
		}
	})
}

// TERM comes one grace period before the end: a command that obeys it has time to finish.
func TestLossIsReportedFirst(t *testing.T) {
	t.Parallel()
	onLeases(t, func(t *testing.T, l *lease) {
		witness := filepath.Join(t.TempDir(), "w")
		h := wrap(t, l.faulty, "obedient", witness, graciously("k")...)
		h.says(t, "ready")
		l.proxy.BlackHole(true)
		h.says(t, "caught terminated")
		if code := h.ends(t); code != 76 {
			t.Errorf("exit %d, %s", code, h.stderr.String())
		}
	})
}

// A lock that is deleted or evicted ends the command within a renewal interval, a third of
// the TTL, and the grace period. The end of the lease must not be what ends it.
func TestLostByDeletion(t *testing.T) {
	t.Parallel()
	onLeases(t, func(t *testing.T, l *lease) {
		for _, mode := range []string{"obedient", "stubborn"} {
			witness := filepath.Join(t.TempDir(), "w")
			h := wrap(t, l.backend, mode, witness, "--ttl", longTTL.String(), "--grace", "500ms", "k")
			h.says(t, "ready")
			l.remove(t, "k")
			diesWithin(t, witness, testenv.UnderStress(longTTL*3/4, longTTL/3+shortGrace+busy))
			if code := h.ends(t); code != 76 || !strings.Contains(h.stderr.String(), "ownership of the lock was lost") {
				t.Errorf("exit %d, %s", code, h.stderr.String())
			}
			for line := range strings.Lines(h.stderr.String()) {
				if strings.Count(line, "dlock: ") != 1 {
					t.Errorf("it says its name more or less than once: %s", line)
				}
			}
		}
	})
}

// The same with --every, whose lease is that of the interval.
func TestEveryLostByDeletion(t *testing.T) {
	t.Parallel()
	onLeases(t, func(t *testing.T, l *lease) {
		h := wrap(t, l.backend, "obedient", filepath.Join(t.TempDir(), "w"), "--every", "1h", "--ttl", longTTL.String(), "--grace", "500ms", "k")
		h.says(t, "ready")
		l.remove(t, "k")
		if code := h.ends(t); code != 76 || !strings.Contains(h.stderr.String(), "ownership of the lock was lost") {
			t.Errorf("exit %d, %s", code, h.stderr.String())
		}
		if last := seen(t, l.backend, "k").LastRun; last == nil || last.OK {
			t.Errorf("the last run is %+v", last)
		}
	})
}

// busy is what a machine may add to a bound: if it has too much to do, so much that only a
// command that is not ended comes later.
var busy = testenv.UnderStress(30*time.Second, 100*time.Millisecond)

// The server dies for good: the command ends all the same. The first failed renewal and the end both
// say why.
func TestLostServer(t *testing.T) {
	t.Parallel()
	onMortals(t, func(t *testing.T, backend string, server mortal) {
		witness := filepath.Join(t.TempDir(), "w")
		h := wrap(t, backend, "stubborn", witness, graciously("k")...)
		h.says(t, "ready")
		if err := server.Kill(); err != nil {
			t.Fatal(err)
		}
		diesWithin(t, witness, graceTTL+busy)
		if code := h.ends(t); code != 76 {
			t.Errorf("exit %d, %s", code, h.stderr.String())
		}
		const why = "connection refused"
		said := h.stderr.String()
		for _, want := range []string{
			"dlock: the lock could not be renewed: ", "; the lock is valid for another ", "dlock: ending the command: the lock could not be renewed: ",
			"dlock: the command was ended: the lock could not be renewed: ",
		} {
			if !strings.Contains(said, want) || strings.Count(said, why) != 3 {
				t.Errorf("it does not say %q, and three times %q: %s", want, why, said)
			}
		}
	})
}

// Programs get the same: every line is JSON, and those of the first failed renewal and of the end have the cause.
func TestLostServerAsJSON(t *testing.T) {
	t.Parallel()
	onMortals(t, func(t *testing.T, backend string, server mortal) {
		h := wrap(t, backend, "obedient", filepath.Join(t.TempDir(), "w"), append([]string{"--json"}, graciously("k")...)...)
		h.says(t, "ready")
		if err := server.Kill(); err != nil {
			t.Fatal(err)
		}
		code := h.ends(t)
		causes := map[string]bool{}
		var last struct {
			Event, Error string
			Code         int
			Valid        float64 `json:"valid_for_seconds"`
		}
		for line := range strings.Lines(h.stderr.String()) {
			last.Valid = 0
			if err := json.Unmarshal([]byte(line), &last); err != nil {
				t.Errorf("%v: %s", err, line)
			}
			causes[last.Event] = strings.Contains(last.Error, "connection refused") && (last.Event != "renewal-failed" || last.Valid > 0)
		}
		if code != 76 || last.Event != "failed" || last.Code != 76 || !causes["renewal-failed"] || !causes["ending"] || !causes["failed"] {
			t.Errorf("exit %d, %s", code, h.stderr.String())
		}
	})
}

// With --on-lost warn the command goes on, and its own code counts.
func TestLostWarns(t *testing.T) {
	t.Parallel()
	onLeases(t, func(t *testing.T, l *lease) {
		witness := filepath.Join(t.TempDir(), "w")
		h := wrap(t, l.backend, "obedient", witness, append([]string{"--on-lost", "warn", "--json"}, reserved("k")...)...)
		h.says(t, "ready")
		l.remove(t, "k")
		awaitEvent(t, h, "lost")
		if isFree(t, witness) {
			t.Error("the command has ended")
		}
		_ = h.Process.Signal(syscall.SIGTERM)
		h.says(t, "caught terminated")
		if code := h.ends(t); code != 7 {
			t.Errorf("exit %d, %s", code, h.stderr.String())
		}
	})
}

// guardianOf waits for the guardian of a command, if it is another one than before.
func guardianOf(t testing.TB, witness string, before int) (pid int) {
	t.Helper()
	group, err := os.ReadFile(witness)
	if err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, testenv.UnderStress(time.Minute, 2*time.Second), "a guardian of the command", func() bool {
		pid = processOf("dlock", "__guardian", string(group))
		return pid != 0 && pid != before
	})
	return pid
}

// processOf is the process with a command line, or 0. Not every Linux has pgrep.
func processOf(command ...string) (pid int) {
	if runtime.GOOS != "linux" {
		out, _ := exec.Command("pgrep", "-fx", strings.Join(command, " ")).Output() // fails if there is none
		pid, _ = strconv.Atoi(strings.TrimSpace(string(out)))
		return pid
	}
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, f := range files {
		if text, err := os.ReadFile(f); err == nil && string(text) == strings.Join(command, "\x00")+"\x00" {
			pid, _ = strconv.Atoi(strings.Split(f, "/")[2])
		}
	}
	return pid
}

// Whoever kills the wrapper kills the command too, where the lock would pass on
// otherwise (F5).
func TestWrapperKilled(t *testing.T) {
	t.Parallel()
	onLeases(t, func(t *testing.T, l *lease) {
		witness := filepath.Join(t.TempDir(), "w")
		h := wrap(t, l.backend, "stubborn", witness, "--ttl", longTTL.String(), "--grace", "500ms", "k")
		h.says(t, "ready")
		guardianOf(t, witness, 0)
		_ = h.Process.Kill()
		diesWithin(t, witness, testenv.UnderStress(longTTL/2, 200*time.Millisecond))
		wrap(t, l.backend, "brief", witness, "k").says(t, "alone")
	})
}

// A wrapper that is stopped cannot renew. Its guardian ends the command when the
// lock is over, and the wrapper says so when it goes on.
func TestWrapperStopped(t *testing.T) {
	t.Parallel()
	onLeases(t, func(t *testing.T, l *lease) {
		witness := filepath.Join(t.TempDir(), "w")
		h := wrap(t, l.backend, "stubborn", witness, reserved("k")...)
		h.says(t, "ready")
		guardianOf(t, witness, 0)
		next := wrap(t, l.backend, "brief", witness, "k")
		_ = h.Process.Signal(syscall.SIGSTOP)
		next.says(t, "alone")
		_ = h.Process.Signal(syscall.SIGCONT)
		if code := h.ends(t); code != 76 {
			t.Errorf("exit %d, %s", code, h.stderr.String())
		}
	})
}

// On files the lock stays with the command if the wrapper dies.
func TestFileLockStaysWithCommand(t *testing.T) {
	t.Parallel()
	backend, witness := files(t), filepath.Join(t.TempDir(), "w")
	h := wrap(t, backend, "stubborn", witness, "k")
	h.says(t, "ready")
	_ = h.Process.Kill()
	_, _ = h.Process.Wait()
	if _, _, code := dlock(t, backend, "run", "--wait", "300ms", "k", "--", "true"); code != 75 {
		t.Errorf("the lock passed on though the command lives: exit %d", code)
	}
	next := wrap(t, backend, "brief", witness, "k")
	killChild(witness)
	next.says(t, "alone")
}
