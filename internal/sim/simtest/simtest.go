// Package simtest runs simulations as a test.
package simtest

import (
	"fmt"
	"os"
	"strconv"
	"testing"
	"testing/cryptotest"
	"testing/synctest"

	"github.com/ceyewan/genesis/internal/sim"
)

// A Suite is the simulations of one backend.
type Suite struct {
	Command  string       // that runs it again, without its seed
	Settings sim.Settings // but for the seed
	// Open makes the store of one run, and returns what ends it.
	Open func(*sim.Simulation) (sim.Store, func() error, error)
	// Failed are seeds that failed once. They are run each time, unless a range is given.
	Failed []uint64
	// Few is how many seeds the test command runs, Full how many DLOCK_STRESS does, and Raced how many
	// are run with the race detector: a race shows under few of them.
	Few, Full, Raced int
	// Tries is how often a seed is run that DLOCK_SEED names, until it fails.
	Tries int
}

// Run runs the suite. DLOCK_SEED runs one seed and prints every message, DLOCK_SEEDS=1-100 a
// range.
func (s Suite) Run(t *testing.T) {
	t.Helper()
	if text := os.Getenv("DLOCK_SEED"); text != "" {
		seed, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		s.replay(t, seed)
		return
	}
	first, last := uint64(1), uint64(s.Few)
	switch {
	case os.Getenv("DLOCK_STRESS") != "":
		last = uint64(s.Full)
	case raced:
		last = uint64(s.Raced)
	}
	if text := os.Getenv("DLOCK_SEEDS"); text != "" {
		if _, err := fmt.Sscanf(text, "%d-%d", &first, &last); err != nil || first > last {
			t.Fatalf("DLOCK_SEEDS=%s: want FIRST-LAST", text)
		}
	}
	counts := map[sim.Way]sim.Count{}
	if os.Getenv("DLOCK_SEEDS") == "" {
		for _, seed := range s.Failed {
			s.judge(t, seed, counts)
		}
	}
	for seed := first; seed <= last && !t.Failed(); seed++ {
		s.judge(t, seed, counts)
	}
	if !t.Failed() {
		s.checkCounts(t, counts)
	}
}

// enough is how often a way to get a lock must have been tried before it is judged: of the calls
// that are granted least, TryLock and TryAcquire, one in five is.
const enough = 40

// checkCounts fails if some way to get a lock was tried and never succeeded.
func (s Suite) checkCounts(t *testing.T, counts map[sim.Way]sim.Count) {
	t.Helper()
	for _, verb := range sim.Verbs() {
		for _, mode := range s.Settings.Modes {
			way := sim.Way{Verb: verb, Mode: mode}
			one := counts[way]
			t.Logf("%v: %d of %d granted", way, one.Granted, one.Asked)
			if one.Asked >= enough && one.Granted == 0 {
				t.Errorf("%v: none of %d calls was granted", way, one.Asked)
			}
		}
	}
}

func (s Suite) judge(t *testing.T, seed uint64, counts map[sim.Way]sim.Count) {
	t.Helper()
	run, failures := s.One(t, seed, false)
	for way, one := range run.Counts() {
		all := counts[way]
		counts[way] = sim.Count{Asked: all.Asked + one.Asked, Granted: all.Granted + one.Granted}
	}
	if len(failures) > 0 {
		t.Errorf("%s\nDLOCK_SEED=%d %s", run.Report(), seed, s.Command)
	}
}

// replay prints the story of a seed: of the first run that fails, or of the last.
func (s Suite) replay(t *testing.T, seed uint64) {
	t.Helper()
	for try := 1; ; try++ {
		run, failures := s.One(t, seed, true)
		if len(failures) > 0 || try >= s.Tries {
			t.Log(run.Report())
			if len(failures) > 0 {
				t.Fail()
			}
			return
		}
	}
}

// One runs a seed to its end.
func (s Suite) One(t *testing.T, seed uint64, verbose bool) (run *sim.Simulation, failures []string) {
	t.Helper()
	ok := t.Run(fmt.Sprint(seed), func(t *testing.T) {
		cryptotest.SetGlobalRandom(t, seed)
		synctest.Test(t, func(t *testing.T) {
			set := s.Settings
			set.Seed, set.Verbose = seed, verbose
			run = sim.New(set)
			store, end, err := s.Open(run)
			if err != nil {
				t.Fatal(err)
			}
			failures = run.Run(store)
			if err := end(); err != nil {
				t.Fatalf("the run is void: %v\n%s", err, run.Report())
			}
		})
	})
	if !ok {
		t.FailNow()
	}
	return run, failures
}
