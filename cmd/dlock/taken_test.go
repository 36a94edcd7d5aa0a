//go:build unix

package main

import (
	"encoding/json"
	"os"
	"os/user"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// A lock that is taken is reported for people: who has it, as the system knows them if no variable does; for how long,
// rounded; and how many others wait, or that this is not known.
func TestTakenLockIsReported(t *testing.T) {
	t.Parallel()
	me, err := user.LookupId(strconv.Itoa(os.Getuid()))
	if err != nil {
		t.Fatal(err)
	}
	onEach(t, func(t *testing.T, backend, name string) {
		holds(t, backend, "", "k")
		waiting := "waiters unknown"
		if name != "file" {
			waits(t, backend, "bob", "k", 1)
			waiting = "1 waiting"
		}
		_, errs, code := dlock(t, backend, "run", "--wait", "5s", "k", "--", "true")
		want := regexp.MustCompile(`\(held by ` + me.Username + `@\S+ pid \d+ for (\d+m)?\d+s, ` + waiting + `\)\n$`)
		if code != 75 || !want.MatchString(errs) || strings.Count(errs, "dlock: ") != strings.Count(errs, "\n") {
			t.Errorf("exit %d, %s", code, errs)
		}
		w := &wrapped{Cmd: command(backend, "run", "--json", "k", "--", "true")}
		w.Env = append(w.Env, impatient)
		w.Stderr = &w.stderr
		if err := w.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = w.Process.Kill() })
		awaitEvent(t, w, "waiting")
		_ = w.Process.Signal(syscall.SIGTERM)
		_ = w.Wait()
		errs = w.stderr.String()
		var e struct {
			Event string
			Ahead *int
		}
		first, _, _ := strings.Cut(errs, "\n")
		if err := json.Unmarshal([]byte(first), &e); err != nil || e.Event != "waiting" || (e.Ahead == nil) != (name == "file") || (e.Ahead != nil && *e.Ahead != 1) {
			t.Errorf("%v, %s", err, errs)
		}
	})
}
