//go:build unix

package main

import (
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ceyewan/genesis/internal/testenv"
)

// onServers are the backends that can evict.
func onServers(t *testing.T, test func(t *testing.T, backend string)) {
	t.Run("redis", func(t *testing.T) { t.Parallel(); test(t, theRedis.backend(t)) })
	t.Run("etcd", func(t *testing.T) { t.Parallel(); test(t, theEtcd.backend(t)) })
}

// H3: no holder is evicted without a terminal unless --yes and the token that was seen
// are given.
func TestEvictNeedsConsent(t *testing.T) {
	t.Parallel()
	onServers(t, func(t *testing.T, backend string) {
		_, token := holds(t, backend, "ann", "k")
		seenToken := strconv.FormatInt(token, 10)
		for _, args := range [][]string{
			{"evict", "k"},
			{"evict", "--yes", "k"},
			{"evict", "--token", seenToken, "k"},
			{"evict", "--yes", "--token", "0", "k"},
			{"evict", "--json", "--token", seenToken, "k"},
		} {
			out, errs, code := dlock(t, backend, args...)
			if code != 64 || out != "" || !strings.Contains(errs, "--token") {
				t.Errorf("%q: exit %d, %q, %q", args, code, out, errs)
			}
		}
		if s := seen(t, backend, "k"); len(s.Holders) != 1 || s.Token != token {
			t.Errorf("evicted all the same: %+v", s)
		}
	})
}

// H3: the token is compared. What has passed on, or is free, is left alone.
func TestEvictComparesTheToken(t *testing.T) {
	t.Parallel()
	onServers(t, func(t *testing.T, backend string) {
		ann, stale := holds(t, backend, "ann", "k")
		bob := waits(t, backend, "bob", "k", 1)
		ann.end()
		token := bob.token(t)
		_, errs, code := dlock(t, backend, "evict", "--yes", "--token", strconv.FormatInt(stale, 10), "k")
		if code != 75 || !strings.Contains(errs, "nothing was changed") || !strings.Contains(errs, "result=refused") {
			t.Errorf("stale: exit %d, %s", code, errs)
		}
		if strings.Contains(errs, "lock evicted") {
			t.Errorf("stale: %s", errs)
		}
		if s := seen(t, backend, "k"); len(s.Holders) != 1 || s.Token != token {
			t.Errorf("the next holder was evicted: %+v", s)
		}
		bob.end()
		_, errs, code = dlock(t, backend, "evict", "--json", "--yes", "--token", strconv.FormatInt(token, 10), "k")
		if r := audited(t, errs); code != 75 || r["result"] != "refused" || !strings.Contains(fmt.Sprint(r["error"]), "not held") {
			t.Errorf("free: exit %d, %s", code, errs)
		}
	})
}

// Whatever an attempt fails for, it is logged, and with --json, nothing but JSON is written.
func TestEvictFailuresAreAudited(t *testing.T) {
	t.Parallel()
	held := files(t)
	_, token := holds(t, held, "ann", "k")
	for _, tc := range []struct {
		backend, token, result, why string
		code                        int
	}{
		{"redis://127.0.0.1:1", "5", "failed", "cannot be reached", 69},
		{held, strconv.FormatInt(token, 10), "refused", "end with their process", 64},
		{held, "-1", "refused", "--token", 64},
	} {
		_, errs, code := dlock(t, tc.backend, "evict", "--json", "--yes", "--token", tc.token, "k")
		if r := audited(t, errs); code != tc.code || r["result"] != tc.result || !strings.Contains(fmt.Sprint(r["error"]), tc.why) || strings.Count(errs, "\n") != 1 {
			t.Errorf("%+v: exit %d, %s", tc, code, errs)
		}
		_, errs, code = dlock(t, tc.backend, "evict", "--yes", "--token", tc.token, "k")
		if code != tc.code || strings.Contains(errs, "result="+tc.result) != (tc.token != "-1") || !strings.Contains(errs, "dlock: ") {
			t.Errorf("%+v, as text: exit %d, %s", tc, code, errs)
		}
	}
}

// H3: an eviction hands the lock on, ends the holder, and is written down.
func TestEvictIsAudited(t *testing.T) {
	t.Parallel()
	onServers(t, func(t *testing.T, backend string) {
		ann, token := holds(t, backend, "ann", "--ttl", "12s", "k")
		bob := waits(t, backend, "bob", "k", 1)
		out, errs, code := dlock(t, backend, "evict", "--json", "--yes", "--token", strconv.FormatInt(token, 10), "k")
		if code != 0 || out != "" || !strings.Contains(errs, `"msg":"lock evicted"`) {
			t.Fatalf("exit %d, %s%s", code, out, errs)
		}
		r := audited(t, errs)
		host, _ := os.Hostname()
		want := map[string]any{
			"result": "evicted", "key": "k", "token": float64(token), "backend": where(backend), "owner": "ann", "host": host,
			"pid": float64(ann.Process.Pid), "by_uid": float64(os.Getuid()), "by_host": host,
		}
		for name, value := range want {
			if r[name] != value {
				t.Errorf("%s is %v, want %v", name, r[name], value)
			}
		}
		if r["by"] == "" || r["by"] == nil || r["time"] == nil {
			t.Errorf("by whom, and when? %s", errs)
		}
		if next := bob.token(t); next <= token {
			t.Errorf("token %d after %d", next, token)
		}
		_ = ann.Wait()
		if code := ann.ProcessState.ExitCode(); code != 76 {
			t.Errorf("the evicted ends with %d", code)
		}
	})
}

// People are shown who has lost the lock and who has it now.
func TestEvictShowsTheNext(t *testing.T) {
	t.Parallel()
	onServers(t, func(t *testing.T, backend string) {
		host, _ := os.Hostname()
		who := func(name string, w *claimant) string { return fmt.Sprintf("%s@%s pid %d", name, host, w.Process.Pid) }
		ann, token := holds(t, backend, "ann", "--ttl", "12s", "k")
		bob := waits(t, backend, "bob", "k", 1)
		_, errs, code := dlock(t, backend, "evict", "--yes", "--token", strconv.FormatInt(token, 10), "k")
		if code != 0 || !strings.Contains(errs, "taken from "+who("ann", ann)) || !strings.Contains(errs, "now held by "+who("bob", bob)) {
			t.Errorf("exit %d, %s", code, errs)
		}
		token = bob.token(t)
		_, errs, code = dlock(t, backend, "evict", "--yes", "--token", strconv.FormatInt(token, 10), "k")
		if code != 0 || !strings.Contains(errs, "taken from "+who("bob", bob)) || !strings.Contains(errs, "and free now") {
			t.Errorf("exit %d, %s", code, errs)
		}
	})
}

// audited is the last line of a log in JSON.
func audited(t *testing.T, log string) map[string]any {
	t.Helper()
	lines := strings.Split(strings.TrimSpace(log), "\n")
	r := map[string]any{}
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &r); err != nil {
		t.Fatalf("%v: %s", err, log)
	}
	if r["msg"] != "eviction by an operator" {
		t.Errorf("the last line is %v", r["msg"])
	}
	return r
}

// On a terminal the holder is shown, and only a yes evicts.
func TestEvictAsks(t *testing.T) {
	t.Parallel()
	backend := theRedis.backend(t)
	_, token := holds(t, backend, "ann", "k")
	waits(t, backend, "bob", "k", 1)
	for _, tc := range []struct {
		answer string
		code   int
	}{{"\n", 75}, {"no\n", 75}, {"\x04", 75}, {"yess\n", 75}, {"y\n", 0}} {
		cmd := command(backend, "evict", "k")
		cmd.Env = append(cmd.Env, "TERM=xterm")
		s := onTerminal(t, cmd)
		s.shows(t, "[y/N] ")
		contains(t, s.String(), "ann@", fmt.Sprintf("token %d", token), "1 waiting, the next is bob@", "\x1b[1mk\x1b[0m")
		if now := seen(t, backend, "k"); now.Token != token {
			t.Fatalf("evicted before the answer: %+v", now)
		}
		if _, err := s.WriteString(tc.answer); err != nil {
			t.Fatal(err)
		}
		if code := exitOf(cmd); code != tc.code {
			t.Errorf("%q: exit %d, %s", tc.answer, code, s.String())
		}
		if now := seen(t, backend, "k"); (now.Token == token) != (tc.code != 0) {
			t.Errorf("%q: %+v", tc.answer, now)
		}
	}
}

// H3: a lock that passes on while the operator thinks is not touched.
func TestEvictPassedOnMeanwhile(t *testing.T) {
	t.Parallel()
	backend := theRedis.backend(t)
	ann, _ := holds(t, backend, "ann", "k")
	bob := waits(t, backend, "bob", "k", 1)
	cmd := command(backend, "evict", "k")
	s := onTerminal(t, cmd)
	s.shows(t, "[y/N] ")
	ann.end()
	token := bob.token(t)
	if _, err := s.WriteString("y\n"); err != nil {
		t.Fatal(err)
	}
	if code := exitOf(cmd); code != 75 {
		t.Errorf("exit %d", code)
	}
	s.shows(t, "passed on meanwhile")
	if now := seen(t, backend, "k"); now.Token != token {
		t.Errorf("bob has lost it: %+v", now)
	}
}

// A lock that is a file cannot be taken away; evict says what can be done.
func TestEvictFile(t *testing.T) {
	t.Parallel()
	backend := files(t)
	ann, token := holds(t, backend, "ann", "k")
	_, errs, code := dlock(t, backend, "evict", "--yes", "--token", strconv.FormatInt(token, 10), "k")
	if code != 64 {
		t.Errorf("exit %d", code)
	}
	contains(t, errs, fmt.Sprintf("kill %d", ann.Process.Pid), "ann@", "files")
	if s := seen(t, backend, "k"); s.Token != token {
		t.Errorf("%+v", s)
	}
}

// A backend that does not answer leaves the outcome open, and that is written down.
func TestEvictUnanswered(t *testing.T) {
	t.Parallel()
	backend := theRedis.backend(t)
	_, token := holds(t, backend, "ann", "k")
	faulty, p := through(t, backend)
	cmd := command(faulty, "evict", "k")
	s := onTerminal(t, cmd)
	s.shows(t, "[y/N] ")
	p.BlackHole(true)
	began := time.Now()
	if _, err := s.WriteString("y\n"); err != nil {
		t.Fatal(err)
	}
	if code := exitOf(cmd); code != 69 || time.Since(began) > testenv.UnderStress(time.Minute, 20*time.Second) {
		t.Errorf("exit %d after %v", code, time.Since(began))
	}
	s.shows(t, "result=unknown")
	if now := seen(t, backend, "k"); now.Token != token {
		t.Errorf("%+v", now)
	}
}
