package result_test

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/ceyewan/genesis/lab/internal/oracle"
	"github.com/ceyewan/genesis/lab/internal/result"
	"github.com/ceyewan/genesis/lab/internal/schedule"
	"github.com/ceyewan/genesis/lab/internal/trial"
)

// Results that another program has made are neither found nor added up.
func TestResultsOfOtherCodeDoNotCount(t *testing.T) {
	folder := result.Folder(t.TempDir())
	spec := trial.Spec{Seed: 1, Topology: schedule.Single, Mode: schedule.Inside, Length: time.Minute}
	if err := folder.Save(result.Result{Spec: spec, Verdict: &oracle.Verdict{}}); err != nil {
		t.Fatal(err)
	}
	if _, found := folder.Find(spec); !found {
		t.Fatal("a result of this program is not found")
	}
	paths, err := filepath.Glob(filepath.Join(string(folder), "seeds", "*.json"))
	if err != nil || len(paths) != 1 {
		t.Fatal(paths, err)
	}
	text, err := os.ReadFile(paths[0])
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(paths[0], bytes.Replace(text, []byte(result.Code()), []byte("another"), 1), 0o600); err != nil {
		t.Fatal(err)
	}
	trials, _, err := folder.Load()
	if _, found := folder.Find(spec); found || err != nil || len(trials) != 0 {
		t.Errorf("a result of another program counts: %v, %v", trials, err)
	}
}

// A mutant is caught by an oracle that sees its mistake, and not by what the machine may have caused.
func TestCaughtByItsOracle(t *testing.T) {
	for _, tt := range []struct {
		x    oracle.Violation
		want bool
	}{
		{oracle.Violation{Oracle: "idle"}, true},
		{oracle.Violation{Oracle: "idle", Stalled: true}, false},
		{oracle.Violation{Oracle: "false-loss"}, false},
	} {
		others := oracle.Violation{Oracle: "denied"}
		r := result.Result{Spec: trial.Spec{Mutant: "hints-only"}, Verdict: &oracle.Verdict{Violations: []oracle.Violation{others, tt.x}}}
		if r.Caught() != tt.want {
			t.Errorf("%+v: caught %v", tt.x, r.Caught())
		}
	}
}
