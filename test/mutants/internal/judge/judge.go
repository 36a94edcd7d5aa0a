package judge

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

// A Target is a package whose files are mutated.
type Target struct {
	Package string   // its folder, relative to the root
	Scripts string   // a pattern of its Lua scripts, if it has any
	Suites  []string // the packages whose tests judge its mutants
}

// A Simulator is a test that explores many seeds.
type Simulator struct {
	Suite, Test string
	Few         []string // environment for a quick look
}

// A Judge runs tests on mutants.
type Judge struct {
	Root        string // of the repository
	Module      string // its import path
	State       string // a folder for what is kept from run to run
	Cache       string // a build cache, of which each worker has a copy; "": the user's, which grows
	Jobs        int
	Grace       time.Duration // a run hangs after this and three times what it takes unmutated
	Quick       bool          // leave out the whole suites
	Fresh       bool          // believe nothing that is recorded
	Targets     []Target      // all that there are, also those that are not judged now
	Simulations []Simulator
	Progress    func(string)

	tmp     string
	builder *builder
	suites  map[string]*suite
	mu      sync.Mutex
	funcs   map[string]map[string]function
}

// A Verdict is what became of a mutant.
type Verdict struct {
	Status string `json:"status"`          // Caught, Survived or Invalid
	Stage  string `json:"stage,omitempty"` // that caught it
	Suite  string `json:"suite,omitempty"`
	Test   string `json:"test,omitempty"`
	Why    string `json:"why,omitempty"` // "failure", "panic", "timeout" or, without a test, "leak"
}

// What became of a mutant.
const (
	Caught   = "caught"
	Survived = "survived"
	Invalid  = "invalid" // it does not compile
)

var testEnv = []string{"DLOCK_TEST_REQUIRE=1"}

// Prepare measures the suites that are needed and fills the build cache. The returned
// function removes all temporary files.
func (j *Judge) Prepare(ctx context.Context, suites []string) (cleanUp func(), err error) {
	j.tmp, err = os.MkdirTemp("", "mutants-")
	if err != nil {
		return nil, err
	}
	cleanUp = func() { _ = os.RemoveAll(j.tmp) }
	j.builder = &builder{root: j.Root, cache: j.Cache}
	j.suites, j.funcs = map[string]*suite{}, map[string]map[string]function{}
	for _, pkg := range suites {
		err = j.prepareSuite(ctx, pkg)
		if err != nil {
			cleanUp()
			return nil, err
		}
	}
	return cleanUp, nil
}

func (j *Judge) prepareSuite(ctx context.Context, pkg string) (err error) {
	j.Progress("building the tests of " + pkg)
	err = j.builder.build(ctx, pkg, j.control(pkg, false))
	if err == nil && !j.Quick {
		err = j.builder.build(ctx, pkg, j.control(pkg, true), "-race")
	}
	if err != nil {
		return err
	}
	var covers []string
	for _, t := range j.Targets {
		if slices.Contains(t.Suites, pkg) {
			covers = append(covers, t.Package)
		}
	}
	j.suites[pkg], err = j.measure(ctx, pkg, covers)
	return err
}

// control is the binary of the unmutated tests.
func (j *Judge) control(pkg string, race bool) string {
	return filepath.Join(j.tmp, "control", binaryName(pkg, race))
}

func binaryName(pkg string, race bool) string {
	name := strings.ReplaceAll(pkg, "/", "-")
	if race {
		name += "-race"
	}
	return name + ".test"
}

// Unreliable are tests that fail on the unmutated code, always or now and then.
func (j *Judge) Unreliable() []string {
	var found []string
	for pkg, s := range j.suites {
		for name, r := range s.tests {
			if r.Failed || r.Shaky {
				found = append(found, pkg+": "+name)
			}
		}
	}
	slices.Sort(found)
	return found
}

// TestHash changes with the text of a test, and when it turns out to be shaky. Without a name,
// it changes with any file of the tests of a target.
func (j *Judge) TestHash(t Target, pkg, test string) (string, error) {
	if test != "" {
		s := j.suites[pkg]
		if s == nil {
			return "", nil
		}
		r := s.record(test)
		if r.Shaky {
			return r.Hash + " shaky", nil
		}
		return r.Hash, nil
	}
	patterns := []string{filepath.Join(j.Root, "pkg/dlock/drivertest/*.go")}
	for _, suite := range t.Suites {
		patterns = append(patterns, filepath.Join(j.Root, suite, "*_test.go"))
	}
	return hashFiles(patterns...)
}
