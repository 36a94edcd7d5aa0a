package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ceyewan/genesis/lab/internal/oracle"
	"github.com/ceyewan/genesis/lab/internal/result"
	"github.com/ceyewan/genesis/lab/internal/schedule"
	"github.com/ceyewan/genesis/lab/internal/trial"
)

func testOptions(t *testing.T) options {
	t.Helper()
	o, err := parseRun([]string{"-results", t.TempDir(), "-goals", "tests", "-topologies", "single,etcd-1", "-at-once", "4", "-duration", "20s"})
	if err != nil {
		t.Fatal(err)
	}
	return o
}

func resultOf(spec trial.Spec, found ...oracle.Violation) result.Result {
	return result.Result{Spec: spec, Date: time.Now(), Verdict: &oracle.Verdict{Operations: 9, Sections: 9, Checked: 9, Violations: found}}
}

var stalledViolation = oracle.Violation{Oracle: "overlap", Stalled: true}

// A script plays the machine: it says what each attempt at a trial shows.
type script struct {
	mu      sync.Mutex
	folder  result.Folder
	shows   func(spec trial.Spec, nth int) []oracle.Violation
	tried   map[trial.Spec]int
	running int
	alone   map[trial.Spec]bool // whether nothing else ran at the last attempt
}

func newScript(o options, shows func(spec trial.Spec, nth int) []oracle.Violation) *script {
	return &script{folder: o.folder, shows: shows, tried: map[trial.Spec]int{}, alone: map[trial.Spec]bool{}}
}

func (s *script) try(_ context.Context, _ string, spec trial.Spec) (result.Result, error) {
	s.mu.Lock()
	s.running++
	s.tried[spec]++
	nth := s.tried[spec]
	s.alone[spec] = s.running == 1
	s.mu.Unlock()
	r := resultOf(spec, s.shows(spec, nth)...)
	err := s.folder.Save(r)
	s.mu.Lock()
	s.running--
	s.mu.Unlock()
	return r, err
}

func TestRunOfJudgedTrialsPasses(t *testing.T) {
	o := testOptions(t)
	s := newScript(o, func(trial.Spec, int) []oracle.Violation { return nil })
	if err := o.runWith(t.Context(), s.try); err != nil {
		t.Error(err)
	}
	for spec, n := range s.tried {
		if n != 1 {
			t.Errorf("%s was tried %d times", spec, n)
		}
	}
}

// Trials that the machine stalls every time prove nothing.
func TestRunOfStalledTrialsFails(t *testing.T) {
	for name, only := range map[string]trial.Spec{"all": {}, "one": {Topology: schedule.Etcd1, Mode: schedule.Beyond}} {
		t.Run(name, func(t *testing.T) {
			o := testOptions(t)
			s := newScript(o, func(spec trial.Spec, _ int) []oracle.Violation {
				if only.Topology == "" || (only.Topology == spec.Topology && only.Mode == spec.Mode) {
					return []oracle.Violation{stalledViolation}
				}
				return nil
			})
			if err := o.runWith(t.Context(), s.try); err == nil {
				t.Error("it passes")
			}
		})
	}
}

// What was stalled among others is tried again alone.
func TestStalledTrialsAreRepeatedAlone(t *testing.T) {
	o := testOptions(t)
	s := newScript(o, func(_ trial.Spec, nth int) []oracle.Violation {
		if nth == 1 {
			return []oracle.Violation{stalledViolation}
		}
		return nil
	})
	if err := o.runWith(t.Context(), s.try); err != nil {
		t.Error(err)
	}
	for _, spec := range o.specs() {
		if s.tried[spec] != 2 || !s.alone[spec] {
			t.Errorf("%s was tried %d times, the last time alone: %v", spec, s.tried[spec], s.alone[spec])
		}
	}
}

func TestRunWithoutTrialsFails(t *testing.T) {
	o := testOptions(t)
	o.seeds = 0
	s := newScript(o, func(trial.Spec, int) []oracle.Violation { return nil })
	if err := o.runWith(t.Context(), s.try); err == nil {
		t.Error("it passes")
	}
}

func TestStalledSeedIsNotJudged(t *testing.T) {
	if err := judged(resultOf(trial.Spec{}, stalledViolation)); err == nil {
		t.Error("a trial that the machine stalled counts as passed")
	}
	if err := judged(resultOf(trial.Spec{})); err != nil {
		t.Error(err)
	}
}

// A run that is told to stop adds up what there is, and fails.
func TestInterruptedRunFails(t *testing.T) {
	o := testOptions(t)
	o.topologies, o.modes, o.atOnce = []string{schedule.Single}, []string{string(schedule.Inside)}, 1
	o.seeds = 2
	ctx, interrupt := context.WithCancel(t.Context())
	s := newScript(o, func(trial.Spec, int) []oracle.Violation {
		interrupt()
		return nil
	})
	if err := o.runWith(ctx, s.try); !errors.Is(err, context.Canceled) {
		t.Errorf("interrupted: %v", err)
	}
	if _, err := os.Stat(filepath.Join(string(o.folder), "summary.json")); err != nil {
		t.Error(err)
	}
}

// An error of a trial is one, whatever it wraps. It keeps no other trial from being run.
func TestErrorOfATrialFailsTheRun(t *testing.T) {
	o := testOptions(t)
	broken := fmt.Errorf("the server did not start: %w", context.Canceled)
	err := o.runWith(t.Context(), func(_ context.Context, _ string, spec trial.Spec) (result.Result, error) {
		if err := o.folder.Save(resultOf(spec)); err != nil {
			return result.Result{}, err
		}
		return result.Result{}, broken
	})
	if !errors.Is(err, broken) {
		t.Errorf("the run ended with %v", err)
	}
}

func TestTrialThatCouldNotBeCarriedOutIsRepeated(t *testing.T) {
	o := testOptions(t)
	s := newScript(o, func(trial.Spec, int) []oracle.Violation { return nil })
	first := o.specs()[0]
	err := o.runWith(t.Context(), func(ctx context.Context, label string, spec trial.Spec) (result.Result, error) {
		r, err := s.try(ctx, label, spec)
		s.mu.Lock()
		defer s.mu.Unlock()
		if spec == first && s.tried[spec] == 1 {
			err = errors.New("no failover within a minute")
		}
		return r, err
	})
	if err != nil {
		t.Error(err)
	}
	for _, spec := range o.specs() {
		if want := 1 + one(spec == first); s.tried[spec] != want {
			t.Errorf("%s was tried %d times, not %d", spec, s.tried[spec], want)
		}
	}
}

// A crash of a worker is never made good, and what could not be carried out is not forgotten because
// there is no time to repeat it.
func TestCrashAndUnrepeatedErrorFailTheRun(t *testing.T) {
	for name, tt := range map[string]struct {
		err    error
		budget time.Duration
	}{"crash": {trial.ErrCrash, time.Hour}, "no time": {errors.New("no failover within a minute"), time.Second}} {
		t.Run(name, func(t *testing.T) {
			o := testOptions(t)
			o.budget, o.atOnce = tt.budget, 1
			s := newScript(o, func(trial.Spec, int) []oracle.Violation { return nil })
			synctest.Test(t, func(t *testing.T) {
				err := o.runWith(t.Context(), func(ctx context.Context, label string, spec trial.Spec) (result.Result, error) {
					time.Sleep(2 * time.Second)
					r, err := s.try(ctx, label, spec)
					if len(s.tried) == 1 && s.tried[spec] == 1 {
						err = tt.err
					}
					return r, err
				})
				if !errors.Is(err, tt.err) {
					t.Errorf("the run ended with %v", err)
				}
			})
		})
	}
}

// A crash is stored: a run that goes on where another ended fails as well, without trying it again.
func TestCrashIsKept(t *testing.T) {
	o := testOptions(t)
	s := newScript(o, func(trial.Spec, int) []oracle.Violation { return nil })
	first := o.specs()[0]
	crash := func(ctx context.Context, label string, spec trial.Spec) (result.Result, error) {
		if spec != first {
			return s.try(ctx, label, spec)
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.tried[spec]++
		return result.Result{}, fmt.Errorf("%w: w0.1", trial.ErrCrash)
	}
	if err := o.runWith(t.Context(), crash); !errors.Is(err, trial.ErrCrash) {
		t.Errorf("the run ended with %v", err)
	}
	o.resume = true
	if err := o.runWith(t.Context(), s.try); err == nil {
		t.Error("the run that goes on passes")
	}
	if s.tried[first] != 1 {
		t.Errorf("it was tried %d times", s.tried[first])
	}
	if r, found := o.folder.Find(first); !found || r.Status() != "failed" || r.Verdict.Violations[0].Oracle != "crash" {
		t.Errorf("stored is %+v", r)
	}
}

func one(yes bool) int {
	if yes {
		return 1
	}
	return 0
}

// The nightly column is not full without looks, faults, mutants and times.
func TestNightNeedsAllItsFigures(t *testing.T) {
	o := testOptions(t)
	for seed := range uint64(40) {
		for _, spec := range o.specs() {
			spec.Seed, spec.Length = seed+1, time.Minute
			v := &oracle.Verdict{
				Operations: 1e6, Sections: 1e6, Checked: 1e6, LossesTimed: 1e4, Ambiguous: 1e5, Endured: 1e4, Rejected: 10, Reentries: 1e4,
				Recoveries: make([]time.Duration, 200), Corrupted: 10 * one(spec.Mode == schedule.Beyond),
			}
			if err := o.folder.Save(result.Result{Spec: spec, Date: time.Now(), Verdict: v}); err != nil {
				t.Fatal(err)
			}
		}
	}
	s, err := o.folder.Summarise("nightly", o.topologies, o.modes)
	if err != nil {
		t.Fatal(err)
	}
	var missed []string
	for _, f := range s.Figures {
		if !f.OK {
			missed = append(missed, f.Name)
		}
	}
	want := []string{
		"faults", "looks at what servers store", "handoff, single, how many", "handoff, etcd-1, how many",
		"return after the context ended, how many", "mutants caught", "mutation score, percent",
	}
	if !slices.Equal(missed, want) {
		t.Errorf("missed are %q, want %q", missed, want)
	}
}
