//go:build unix

package main

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/ceyewan/genesis/internal/faultproxy"
	"github.com/ceyewan/genesis/internal/testenv"
)

func TestLs(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, backend, name string) {
		out, errs, code := dlock(t, backend, "ls")
		if code != 0 || errs != "" || strings.Count(out, "\n") != 1 {
			t.Errorf("nothing is locked: exit %d, %q, %q", code, out, errs)
		}
		c, token := holds(t, backend, "ann", "app:deploy")
		holds(t, backend, "bob", "other")
		waiters := "-"
		if name != "file" {
			waits(t, backend, "eve", "app:deploy", 1)
			waiters = "1"
		}
		out, _, _ = dlock(t, backend, "ls")
		f := fields(t, out, "app:deploy")
		if f[1] != "exclusive" || !strings.HasPrefix(f[2], "ann@") || !slices.Contains(f, fmt.Sprint(c.Process.Pid)) || f[len(f)-1] != waiters {
			t.Errorf("%q", f)
		}
		if hasLease := f[len(f)-2] != "-"; hasLease != (name != "file") {
			t.Errorf("lease: %q", f)
		}
		if strings.Index(out, "app:deploy") > strings.Index(out, "other") {
			t.Errorf("not in order:\n%s", out)
		}
		out, _, _ = dlock(t, backend, "ls", "--prefix", "app:", "--json")
		all := decode(t, out)
		if len(all) != 1 || all[0].Key != "app:deploy" || all[0].Token != token || all[0].Holders[0].PID != c.Process.Pid {
			t.Errorf("%s", out)
		}
		if h := all[0].Holders[0]; h.Held == nil || (h.Left == nil) != (name == "file") || h.Purpose != "sh" {
			t.Errorf("%s", out)
		}
	})
}

// Pages go on where the last one ended, and miss nothing.
func TestLsPages(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, backend, _ string) {
		want := []string{"a b", "c", "d/e", "f:g", "h"}
		for _, k := range want {
			holds(t, backend, "ann", k)
		}
		var got []string
		cursor := ""
		for range 2 * len(want) { // or it never ends
			out, errs, code := dlock(t, backend, "ls", "--json", "--limit", "2", "--after", cursor)
			page := decode(t, out)
			if code != 0 || len(page) > 2 {
				t.Fatalf("exit %d, %s%s", code, out, errs)
			}
			for _, l := range page {
				got = append(got, l.Key)
			}
			if errs == "" {
				break
			}
			var more struct{ Next string }
			if err := json.Unmarshal([]byte(errs), &more); err != nil || more.Next == "" {
				t.Fatalf("%v: %s", err, errs)
			}
			cursor = more.Next
		}
		if slices.Sort(got); !slices.Equal(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
	})
}

// A reply that is lost is asked for again.
func TestLsInsists(t *testing.T) {
	t.Parallel()
	backend := theRedis.backend(t)
	holds(t, backend, "ann", "k")
	faulty, p := through(t, backend)
	p.Intercept(faultproxy.Next(2, faultproxy.DropReply, "evalsha"))
	if out, errs, code := dlock(t, faulty, "ls"); code != 0 || !strings.Contains(out, "ann@") {
		t.Errorf("exit %d, %s%s", code, out, errs)
	}
	p.Intercept(faultproxy.Every(faultproxy.DropReply, "evalsha"))
	if out, errs, code := dlock(t, faulty, "ls"); code != 69 || errs == "" {
		t.Errorf("exit %d, %s%s", code, out, errs)
	}
}

func TestLsSharedAndPermits(t *testing.T) {
	t.Parallel()
	backend := files(t)
	holds(t, backend, "ann", "--shared", "data")
	holds(t, backend, "bob", "--shared", "data")
	holds(t, backend, "eve", "--permits", "3", "gpu")
	out, _, _ := dlock(t, backend, "ls")
	contains(t, out, "shared by 2", "ann@", " and 1 more", "1 of 3 permits", "eve@")
}

// foreign puts keys into a Redis that another program would put there: with a name and
// with an owner that steer a terminal.
func foreign(t *testing.T) (backend string) {
	t.Helper()
	r := testenv.Redis(t)
	client := r.Client()
	defer client.Close()
	for _, key := range []string{"evil\x1b[31mkey", "owned"} {
		value := strings.Repeat("0123456789abcdef", 2) + `. 7 1 - {"o":"mall\u001b[2Jory\u202e\u009b31m","h":"h"}`
		if err := client.Set(t.Context(), key, value, 0).Err(); err != nil {
			t.Fatal(err)
		}
	}
	return "redis://" + r.Addr()
}

// What others have put into the store cannot steer the terminal, and does not hide
// our own locks.
func TestForeignTextIsHarmless(t *testing.T) {
	t.Parallel()
	backend := foreign(t)
	holds(t, backend, "ann", "ours")
	for _, args := range [][]string{{"ls"}, {"ls", "--json"}, {"show", "owned"}, {"show", "--json", "owned"}, {"__complete", "show", ""}} {
		out, _, code := dlock(t, backend, args...)
		if code != 0 || strings.ContainsAny(out, "\x1b\u202e\u009b") {
			t.Errorf("%q: exit %d, %q", args, code, out)
		}
		if !strings.Contains(out, `mall`) && args[0] != "__complete" {
			t.Errorf("%q: %q", args, out)
		}
		if strings.Contains(out, "0123456789abcdef") {
			t.Errorf("%q shows an ID: %q", args, out)
		}
	}
	out, _, _ := dlock(t, backend, "ls")
	contains(t, out, `evil\x1b[31mkey`, "control character", `mall\x1b[2Jory\u202e\u009b31m@h`)
	if f := fields(t, out, "ours"); f[1] != "exclusive" {
		t.Errorf("%q", f)
	}
	cmd := command(backend, "ls")
	cmd.Env = append(cmd.Env, "TERM=xterm", "NO_COLOR=1")
	s := onTerminal(t, cmd)
	if code := exitOf(cmd); code != 0 {
		t.Errorf("exit %d", code)
	}
	s.shows(t, "ours")
	if strings.ContainsAny(s.String(), "\x1b\u202e\u009b") {
		t.Errorf("a terminal gets %q", s.String())
	}
}

// A table fits its terminal, and is coloured there unless the user objects.
func TestLsOnTerminal(t *testing.T) {
	t.Parallel()
	backend := files(t)
	key := "orders:" + strings.Repeat("x", 120) + ":4711"
	holds(t, backend, strings.Repeat("ann", 20), key)
	for _, env := range [][]string{{"TERM=xterm"}, {"TERM=xterm", "NO_COLOR=1"}, {"TERM=dumb"}} {
		cmd := command(backend, "ls")
		cmd.Env = append(cmd.Env, env...)
		s := onTerminal(t, cmd)
		if code := exitOf(cmd); code != 0 {
			t.Errorf("exit %d", code)
		}
		<-s.done
		text := s.String()
		contains(t, text, "orders:", ":4711", "…", "annann")
		if coloured := strings.Contains(text, "\x1b[1mKEY"); coloured != (len(env) == 1 && env[0] == "TERM=xterm") {
			t.Errorf("%q: %q", env, text)
		}
		if len(env) == 2 {
			for line := range strings.Lines(text) {
				if n := len([]rune(strings.TrimRight(line, "\r\n"))); n > 100 {
					t.Errorf("%d columns: %s", n, line)
				}
			}
		}
	}
	out, _, _ := dlock(t, backend, "ls")
	contains(t, out, key) // a program gets all of it
}

func TestLsRefusals(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		args []string
		code int
		say  string
	}{
		{[]string{"ls", "--limit", "-1"}, 64, "negative"},
		{[]string{"ls", "--after", "???"}, 64, "cursor"},
		{[]string{"ls", "extra"}, 64, "Try: dlock ls --help"},
		{[]string{"show"}, 64, "Try: dlock show --help"},
		{[]string{"show", "a\x1b[2J"}, 64, `a\x1b[2J`},
		{[]string{"watch", "--interval", "1ms"}, 64, "100ms"},
		{[]string{"doctor", "--ttl", "0s"}, 64, "not positive"},
		{[]string{"--backend", "redis://127.0.0.1:1", "ls"}, 69, "refused"},
		{[]string{"--backend", "redis://127.0.0.1:1", "evict", "--yes", "--token", "1", "k"}, 69, "refused"},
	} {
		out, errs, code := dlock(t, files(t), tc.args...)
		if code != tc.code || !strings.Contains(errs, tc.say) || out != "" {
			t.Errorf("%q: exit %d, %q, %q", tc.args, code, out, errs)
		}
	}
}
