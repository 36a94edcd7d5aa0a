package main

import (
	_ "embed"
	"encoding/json"
	"flag"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/lab/internal/mutant"
	"github.com/ceyewan/genesis/lab/internal/oracle"
	"github.com/ceyewan/genesis/lab/internal/report"
	"github.com/ceyewan/genesis/lab/internal/result"
	"github.com/ceyewan/genesis/lab/internal/trial"
)

// Workers are this binary again.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "worker" {
		main()
		return
	}
	_ = flag.Set("test.parallel", "3") // a flag of the command wins
	goleak.VerifyTestMain(m)
}

//go:embed testdata/seeds.json
var storedSeeds []byte

// A stored seed is a trial that is replayed forever: one that failed once, a slice
// of a healthy topology, or one that has caught a mutant.
type stored struct {
	trial.Spec
	// Oracle is one that catches the mutant in this seed.
	Oracle string `json:"oracle,omitempty"`
	// Always: not only with DLOCK_STRESS=1.
	Always bool `json:"always,omitempty"`
}

func seeds(t *testing.T) (all []stored) {
	t.Helper()
	if err := json.Unmarshal(storedSeeds, &all); err != nil {
		t.Fatal(err)
	}
	return all
}

// machine is shared by replays, and taken by one that the others have stalled.
var machine sync.RWMutex

// Replays run three at a time: a schedule is mostly waiting.
func TestStoredSeeds(t *testing.T) {
	for _, s := range seeds(t) {
		if !s.Always && os.Getenv("DLOCK_STRESS") == "" {
			continue
		}
		t.Run(strings.ReplaceAll(result.Result{Spec: s.Spec}.Name(), "/", "-"), func(t *testing.T) {
			t.Parallel()
			if s.Oracle == "" { // also the control, or what mutants are caught by proves nothing
				passes(t, s)
			} else {
				isCaught(t, s)
			}
		})
	}
}

func passes(t *testing.T, s stored) {
	r := replaySeed(t, s, machine.RLocker())
	if r.Status() == "stalled" || isLate(r) {
		r = replaySeed(t, s, &machine)
	}
	if err := judged(r); err != nil && !isLate(r) {
		t.Errorf("%s: %v", report.Replay(r), err)
	}
	if r.Verdict.Sections == 0 || r.Verdict.Checked == 0 {
		t.Errorf("nothing was locked: %+v", r.Verdict)
	}
}

// isLate reports whether a few calls returned later than the lab allows, by less than two seconds, and nothing else is wrong. Only
// under stress has the machine nothing else to do. Calls that a measured stall has delayed do not count; of the others, a product
// that is late itself delays each whose context ends, or each release.
func isLate(r result.Result) bool {
	if os.Getenv(testenv.StressEnv) != "" || r.Verdict.Passed() {
		return false
	}
	late := 0
	for _, x := range r.Verdict.Violations {
		if x.Oracle != "overrun" || x.To-x.From > int64(2*time.Second) {
			return false
		}
		if !x.Stalled {
			late++
		}
	}
	return late <= 2+len(r.Verdict.Overruns)/20
}

// isCaught tries a few times: schedules repeat exactly, what processes do under them
// does not.
func isCaught(t *testing.T, s stored) {
	var last result.Result
	for range 3 {
		last = replaySeed(t, s, machine.RLocker())
		if slices.ContainsFunc(last.Verdict.Violations, func(x oracle.Violation) bool { return x.Oracle == s.Oracle && !x.Stalled }) {
			return
		}
	}
	t.Errorf("%s: the oracle %q saw nothing, only %+v", report.Replay(last), s.Oracle, last.Verdict.Violations)
}

func replaySeed(t *testing.T, s stored, turn sync.Locker) result.Result {
	t.Helper()
	turn.Lock()
	defer turn.Unlock()
	if strings.HasPrefix(s.Topology, "etcd") {
		testenv.Etcd(t)
	} else {
		testenv.Redis(t)
	}
	r, err := conduct(t.Context(), "["+t.Name()+"]", s.Spec, result.Folder(t.TempDir()))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestEveryMutantHasASeed(t *testing.T) {
	all := seeds(t)
	for _, m := range mutant.All {
		if !slices.ContainsFunc(all, func(s stored) bool { return s.Mutant == m.Name && s.Oracle != "" }) {
			t.Errorf("no stored seed catches %s", m.Name)
		}
	}
	for _, s := range all {
		m, _ := mutant.Find(s.Mutant)
		if s.Oracle != "" && !slices.Contains(m.By, s.Oracle) {
			t.Errorf("%s is to be caught by %v, and its seed by %q", s.Mutant, m.By, s.Oracle)
		}
	}
	for _, s := range all {
		if s.Mutant != "" && s.Length > 12e9 {
			t.Errorf("the seed of %s takes %v", s.Mutant, s.Length)
		}
	}
}

// Few calls that are late for no reason that was measured are left to make stress, and nothing else.
func TestFewLateCallsAreExcused(t *testing.T) {
	t.Setenv(testenv.StressEnv, "")
	late := func(oracleName string, by time.Duration, stalled bool) oracle.Violation {
		return oracle.Violation{Oracle: oracleName, From: 1, To: 1 + int64(by), Stalled: stalled}
	}
	few := late("overrun", time.Second, false)
	for _, tc := range []struct {
		name  string
		found []oracle.Violation
		want  bool
	}{
		{"none", nil, false},
		{"two", []oracle.Violation{few, few}, true},
		{"three", []oracle.Violation{few, few, few}, false},
		{"and one that a stall explains", []oracle.Violation{few, few, late("overrun", time.Second, true)}, true},
		{"very late", []oracle.Violation{late("overrun", 3*time.Second, false)}, false},
		{"something else", []oracle.Violation{few, late("idle", time.Second, false)}, false},
	} {
		if got := isLate(resultOf(trial.Spec{}, tc.found...)); got != tc.want {
			t.Errorf("%s: %v", tc.name, got)
		}
	}
	r := resultOf(trial.Spec{}, few, few, few)
	r.Verdict.Overruns = make([]time.Duration, 20)
	if !isLate(r) {
		t.Error("three of twenty are not excused")
	}
	t.Setenv(testenv.StressEnv, "1")
	if isLate(r) {
		t.Error("excused under stress")
	}
}
