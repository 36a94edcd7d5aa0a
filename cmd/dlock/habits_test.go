//go:build unix

package main

import (
	"bytes"
	"encoding/json"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ceyewan/genesis/internal/faultproxy"
	"github.com/ceyewan/genesis/internal/testenv"
)

// What users of flock type works: flags after the key, seconds without a unit, a string for the
// shell, an exit code of their choice.
func TestRunAsFlockIsUsed(t *testing.T) {
	t.Parallel()
	backend := files(t)
	for _, tc := range []struct {
		args []string
		out  string
		code int
		errs string
	}{
		{args: []string{"k", "--try", "--", "echo", "a"}, out: "a\n"},
		{args: []string{"k", "-n", "echo", "-n", "a"}, out: "a"},
		{args: []string{"k", "-c", "echo a; exit 3"}, out: "a\n", code: 3},
		{args: []string{"-c", "echo a", "k"}, out: "a\n"},
		{args: []string{"-w", "30", "k", "echo", "a"}, out: "a\n"},
		{args: []string{"k", "--wait", "0.5", "--ttl=20", "--", "echo", "a"}, out: "a\n"},
		{args: []string{"-E", "9", "k", "--", "sh", "-c", "exit 75"}, code: 75}, // the command's own
		{args: []string{"k", "--help"}, out: "Run waits for the lock KEY"},
		{args: []string{"-w", "soon", "k", "true"}, code: 64, errs: "--wait"},
		{args: []string{"-w", "inf", "k", "true"}, code: 64, errs: "--wait"},
		{args: []string{"k", "-c", "true", "--", "true"}, code: 64, errs: "--command"},
		{args: []string{"k", "--no-such-flag", "--", "true"}, code: 64, errs: "no-such-flag"},
		{args: []string{"k", "-E", "256", "true"}, code: 64, errs: "--conflict-exit-code 256"},
		{args: []string{"k", "-n", "--"}, code: 64, errs: "COMMAND"},
		{args: nil, code: 64, errs: "KEY"},
	} {
		out, errs, code := dlock(t, backend, append([]string{"run"}, tc.args...)...)
		if code != tc.code || !strings.HasPrefix(out, tc.out) || !strings.Contains(errs, tc.errs) || (tc.errs == "" && errs != "") {
			t.Errorf("%q: exit %d, %q, %q", tc.args, code, out, errs)
		}
	}
	witness := filepath.Join(t.TempDir(), "w")
	wrap(t, backend, "obedient", witness, "k").says(t, "ready")
	if _, errs, code := dlock(t, backend, "run", "k", "-n", "-E", "9", "--", "true"); code != 9 || !strings.Contains(errs, "held by") {
		t.Errorf("taken: exit %d, %q", code, errs)
	}
}

// With --json, every line on standard error is JSON, whatever goes wrong, and the last one has the
// exit code.
func TestRunReportsFailuresAsJSON(t *testing.T) {
	t.Parallel()
	backend, witness := files(t), filepath.Join(t.TempDir(), "w")
	wrap(t, backend, "obedient", witness, "k").says(t, "ready")
	for _, tc := range []struct {
		backend string
		args    []string
		code    int
	}{
		{backend, []string{"--try", "k", "--", "true"}, 75},
		{backend, []string{"--wait", "1ms", "k", "--", "true"}, 75},
		{backend, []string{"--ttl", "1s", "--grace", "1s", "free", "--", "true"}, 64},
		{backend, []string{"--permits", "2", "", "--", "true"}, 64},
		{backend, []string{"--max-hold", "50ms", "--grace", "10ms", "free", "--", "sleep", "60"}, 76},
		{backend, []string{"free", "--", "no-such-command"}, 127},
		{"redis://127.0.0.1:1", []string{"--try", "k", "--", "true"}, 69},
		{backend, []string{"-v", "--try", "k", "--", "true"}, 75},
		{backend, []string{}, 64},
		{backend, []string{"free"}, 64},
		{backend, []string{"--ttl", "x", "free", "--", "true"}, 64},
		{backend, []string{"free", "--no-such-flag", "--", "true"}, 64},
		{backend, []string{"-c", "true", "free", "--", "true"}, 64},
	} {
		_, errs, code := dlock(t, tc.backend, append([]string{"run", "--json"}, tc.args...)...)
		var last struct {
			Event, Error string
			Code         int
		}
		lines := bytes.Split(bytes.TrimSpace([]byte(errs)), []byte("\n"))
		for _, line := range lines {
			if err := json.Unmarshal(line, &last); err != nil {
				t.Errorf("%q: %q is not JSON: %v", tc.args, line, err)
			}
		}
		if code != tc.code || last.Event != "failed" || last.Code != tc.code || last.Error == "" {
			t.Errorf("%q: exit %d, and the last line is %q", tc.args, code, lines[len(lines)-1])
		}
	}
}

// --json counts also after a flag that cannot be read, and not as an argument of the command.
func TestRunFindsJSONInWrongArguments(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		args []string
		json bool
	}{
		{[]string{"--ttl", "x", "--json", "k", "--", "true"}, true},
		{[]string{"k", "--ttl", "x", "--json", "--", "true"}, true},
		{[]string{"--ttl", "x", "k", "--", "true", "--json"}, false},
	} {
		_, errs, code := dlock(t, files(t), append([]string{"run"}, tc.args...)...)
		if code != 64 || strings.Contains(errs, `"event":"failed"`) != tc.json || !strings.Contains(errs, "ttl") {
			t.Errorf("%q: exit %d, %s", tc.args, code, errs)
		}
	}
}

// --try and --wait limit connecting too: a server that accepts connections and never answers does
// not hold up a cron job. Without a limit it takes five seconds, which is the control.
func TestRunLimitsConnecting(t *testing.T) {
	t.Parallel()
	onServers(t, func(t *testing.T, backend string) {
		calls := [][]string{{}, {"--try"}, {"--wait", "1s"}, {"--wait", "0"}}
		took := make([]time.Duration, len(calls))
		var all sync.WaitGroup
		for i, flags := range calls {
			faulty, proxy := through(t, backend)
			proxy.BlackHole(true)
			all.Go(func() { took[i] = refusedAfter(t, faulty, proxy, flags) })
			if stress() {
				all.Wait() // each alone
			}
		}
		all.Wait()
		for i, flags := range calls[1:] {
			if took[i+1] > testenv.UnderStress(took[0]-time.Second, 1500*time.Millisecond) {
				t.Errorf("%q: it took %v, and %v without a limit", flags, took[i+1], took[0])
			}
		}
	})
}

// refusedAfter returns how long a command takes that cannot connect, from its first connection: a process may take long to start.
func refusedAfter(t *testing.T, backend string, proxy *faultproxy.Proxy, flags []string) time.Duration {
	t.Helper()
	cmd := command(backend, append(append([]string{"run"}, flags...), "k", "--", "true")...)
	cmd.Env = append(cmd.Env, impatient)
	connected, ended := make(chan time.Time, 1), make(chan struct{})
	go func() {
		for proxy.Connections() == 0 {
			select {
			case <-time.After(time.Millisecond):
			case <-ended:
				close(connected)
				return
			}
		}
		connected <- time.Now()
	}()
	_, errs, code := finish(t, cmd)
	at := time.Now()
	close(ended)
	if code != 69 {
		t.Errorf("%q: exit %d, %s", flags, code, errs)
	}
	began, ok := <-connected
	if !ok {
		t.Errorf("%q: it did not connect", flags)
	}
	return at.Sub(began)
}

// A call that the client repeats says at its first failure what is wrong.
func TestRunSaysWhyItTriesAgain(t *testing.T) {
	t.Parallel()
	host, port, _ := net.SplitHostPort(testenv.Redis(t).Addr())
	replica := testenv.Redis(t, "--replicaof", host+" "+port)
	client := replica.Client()
	defer client.Close()
	testenv.Eventually(t, time.Minute, "the replica has a master", func() bool {
		return strings.Contains(client.Info(t.Context(), "replication").Val(), "master_link_status:up")
	})
	_, errs, code := dlock(t, "redis://"+replica.Addr(), "run", "--wait", "5s", "k", "--", "true")
	first, _, _ := strings.Cut(errs, "\n")
	if code != 69 || !strings.HasPrefix(first, "dlock: trying again: ") || !strings.Contains(first, "read only replica") {
		t.Errorf("exit %d, %s", code, errs)
	}
}

func TestRootCommand(t *testing.T) {
	t.Parallel()
	long, _, _ := dlock(t, files(t), "version")
	if out, _, code := dlock(t, files(t), "--version"); code != 0 || out != long || !strings.HasPrefix(out, "dlock ") {
		t.Errorf("--version: exit %d, %q; version prints %q", code, out, long)
	}
	if _, errs, code := dlock(t, files(t), "rnu", "k", "--", "true"); code != 64 || !strings.Contains(errs, "did you mean run?") {
		t.Errorf("exit %d, %q", code, errs)
	}
}

// A file that flock(1) locks is a backend: each excludes the other, whoever made the file.
func TestRunSharesAFileWithFlock(t *testing.T) {
	t.Parallel()
	for name, first := range map[string]string{"made by flock": "flock", "made by dlock": program} {
		path := filepath.Join(t.TempDir(), "locks", "myApp.lock")
		if err := os.Mkdir(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		backend := "file://" + path
		if first == "flock" {
			inner := exec.Command("flock", path, program, "run", "--try", "myApp", "--", "true")
			inner.Env = append(os.Environ(), "DLOCK_BACKEND="+backend)
			if _, errs, code := finish(t, inner); code != 75 || !strings.Contains(errs, "held by") {
				t.Errorf("%s: dlock under flock: exit %d, %q", name, code, errs)
			}
		}
		if out, errs, code := dlock(t, backend, "run", "myApp", "--", "flock", "-n", "-E", "9", path, "true"); code != 9 {
			t.Errorf("%s: flock under dlock: exit %d, %q, %q", name, code, out, errs)
		}
		if _, errs, code := dlock(t, backend, "run", "other", "--", "true"); code != 64 || !strings.Contains(errs, `"myApp"`) {
			t.Errorf("%s: another key: exit %d, %q", name, code, errs)
		}
		if st, err := os.Stat(path); err != nil || !st.Mode().IsRegular() {
			t.Errorf("%s: %v, %v", name, st, err)
		}
	}
}
