//go:build unix

package main

import (
	"bufio"
	"encoding/json"
	"io"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// A claimant is a dlock run that has a lock, or waits for it, until it is told to end.
type claimant struct {
	*exec.Cmd
	in      io.Closer
	out     *bufio.Reader
	granted bool
}

// claims starts a claimant under the name of a user.
func claims(t testing.TB, backend, user string, args ...string) *claimant {
	t.Helper()
	args = append(append([]string{"run", "--quiet"}, args...), "--", "sh", "-c", "echo $DLOCK_TOKEN; cat")
	c := &claimant{Cmd: command(backend, args...)}
	c.Env = append(c.Env, "USER="+user)
	in, err := c.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	c.in, c.out = in, bufio.NewReader(out)
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.end() })
	return c
}

// end gives the lock back, or gives up to wait.
func (c *claimant) end() {
	_ = c.in.Close()
	if !c.granted {
		_ = c.Process.Signal(syscall.SIGTERM)
	}
	if c.ProcessState == nil {
		timer := time.AfterFunc(time.Minute, func() { _ = c.Process.Kill() })
		_, _ = io.Copy(io.Discard, c.out)
		_ = c.Wait()
		timer.Stop()
	}
}

// token waits until the claimant has the lock.
func (c *claimant) token(t testing.TB) int64 {
	t.Helper()
	line, err := c.out.ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.ParseInt(strings.TrimSpace(line), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	c.granted = true
	return n
}

// holds is a claimant that has the lock, and its token.
func holds(t testing.TB, backend, user string, args ...string) (*claimant, int64) {
	t.Helper()
	c := claims(t, backend, user, args...)
	return c, c.token(t)
}

// waits is a claimant behind others.
func waits(t testing.TB, backend, user, key string, place int) *claimant {
	t.Helper()
	c := claims(t, backend, user, key)
	queued(t, backend, key, place)
	return c
}

// shown is what ls, show and watch say of a lock in JSON.
type shown struct {
	Time    time.Time
	Event   string
	Key     string
	Mode    string
	Limit   int
	Token   int64
	Holders []shownClaim
	Waiters *int
	Queue   []shownClaim
	Error   string
	LastRun *shownRun `json:"last_run"`
}

// shownRun is the last run of a job.
type shownRun struct {
	Ended       time.Time
	Took        float64 `json:"took_seconds"`
	OK          bool
	Error       string
	Owner, Host string
	PID         int
}

type shownClaim struct {
	Mode                 string
	Token                int64
	Owner, Host, Purpose string
	PID                  int
	Held                 *float64 `json:"held_for_seconds"`
	Waiting              *float64 `json:"waiting_for_seconds"`
	Left                 *float64 `json:"lease_left_seconds"`
}

// seen is what show says of a key.
func seen(t testing.TB, backend, key string) shown {
	t.Helper()
	out, errs, code := dlock(t, backend, "show", "--json", key)
	if code != 0 || errs != "" {
		t.Fatalf("show: exit %d, %s", code, errs)
	}
	return decode(t, out)[0]
}

// decode reads lines of JSON, and refuses what is not documented.
func decode(t testing.TB, text string) []shown {
	t.Helper()
	var all []shown
	for line := range strings.Lines(text) {
		var s shown
		if err := json.Unmarshal([]byte(line), &s); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		all = append(all, s)
	}
	return all
}

// contains asserts that a text has all these parts.
func contains(t testing.TB, text string, parts ...string) {
	t.Helper()
	for _, p := range parts {
		if !strings.Contains(text, p) {
			t.Errorf("no %q in:\n%s", p, text)
		}
	}
}

// fields are the words of the line of a table that begins with a key.
func fields(t testing.TB, text, key string) []string {
	t.Helper()
	for line := range strings.Lines(text) {
		if f := strings.Fields(line); len(f) > 0 && f[0] == key {
			return f
		}
	}
	t.Fatalf("no %s in:\n%s", key, text)
	return nil
}
