package drivertest_test

import (
	"flag"
	"maps"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/drivertest"
	"github.com/ceyewan/genesis/pkg/dlock/memlock"
)

// chosen names the broken backend on which a child process runs the suite.
const chosen = "DRIVERTEST_BROKEN"

func TestMain(m *testing.M) {
	if os.Getenv(chosen) != "" {
		os.Exit(m.Run()) // a broken backend may leak what it likes
	}
	goleak.VerifyTestMain(m)
}

// TestSubject is the suite on the broken backend that the environment names, or on the correct one.
func TestSubject(t *testing.T) {
	name, opts := os.Getenv(chosen), []drivertest.Option{drivertest.InVirtualTime()}
	change := broken[name].make
	if b, ok := failing[name]; ok {
		change, opts = b.make, nil
	}
	drivertest.Run(t, func(*testing.T) *drivertest.Harness {
		store := memlock.New()
		open := func(t *testing.T, o driver.Options) driver.Driver {
			t.Helper()
			d, err := store.Open(o)
			if err != nil {
				t.Fatal(err)
			}
			if change == nil {
				return d
			}
			return change(d.(backend))
		}
		sound, _ := store.Open(driver.Options{})
		defer func() { _ = sound.Close() }()
		// Settings as on a real server: a fault that Slack hides there must not be detected only here.
		return &drivertest.Harness{Caps: sound.Caps(), Open: open, Grants: 1000, TTL: 4 * time.Second, WaiterTTL: time.Minute, Slack: 4 * time.Second}
	}, opts...)
}

var failed = regexp.MustCompile(`(?m)^\s*--- FAIL: TestSubject/(\w+)`)

// TestSuiteRejectsBrokenBackends: the suite detects every broken backend, with the case that covers
// the broken promise.
func TestSuiteRejectsBrokenBackends(t *testing.T) {
	if len(broken) < 12 {
		t.Fatalf("only %d broken backends", len(broken))
	}
	all := maps.Clone(broken)
	maps.Copy(all, failing)
	for name, b := range all {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			args := []string{"-test.run=^TestSubject$/^" + b.caughtBy + "$", "-test.timeout=60s"}
			if cover := flag.Lookup("test.gocoverdir"); cover != nil && cover.Value.String() != "" { // what is reported counts as well
				args = append(args, "-test.gocoverdir="+cover.Value.String())
			}
			cmd := exec.CommandContext(t.Context(), os.Args[0], args...)
			cmd.Env = append(os.Environ(), chosen+"="+name)
			out, err := cmd.CombinedOutput()
			if err == nil {
				t.Fatalf("the suite passed:\n%s", out)
			}
			var cases []string
			for _, m := range failed.FindAllStringSubmatch(string(out), -1) {
				cases = append(cases, m[1])
			}
			if !slices.Contains(cases, b.caughtBy) {
				t.Errorf("%s did not fail, but %v:\n%s", b.caughtBy, cases, tail(string(out)))
			}
		})
	}
}

func tail(out string) string {
	lines := strings.Split(out, "\n")
	return strings.Join(lines[max(0, len(lines)-30):], "\n")
}

// A backend that is tested in several settings may choose its cases.
func TestChosenCases(t *testing.T) {
	ran := func(opts ...drivertest.Option) (names []string) {
		drivertest.Run(t, func(t *testing.T) *drivertest.Harness {
			_, name, _ := strings.Cut(t.Name(), "/")
			names = append(names, strings.Split(name, "#")[0])
			store := memlock.New()
			open := func(t *testing.T, o driver.Options) driver.Driver {
				t.Helper()
				d, err := store.Open(o)
				if err != nil {
					t.Fatal(err)
				}
				return d
			}
			sound, _ := store.Open(driver.Options{})
			defer func() { _ = sound.Close() }()
			return &drivertest.Harness{Caps: sound.Caps(), Open: open, Grants: 10}
		}, append(opts, drivertest.InVirtualTime())...)
		return names
	}
	all := ran()
	if only := ran(drivertest.Only("HandOff", "Caps")); !slices.Equal(only, []string{"Caps", "HandOff"}) {
		t.Errorf("ran %q", only)
	}
	if rest := ran(drivertest.Except("Caps")); len(rest) != len(all)-1 || slices.Contains(rest, "Caps") {
		t.Errorf("ran %d of %d: %q", len(rest), len(all), rest)
	}
}
