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
	Helpers     []string // packages that tests call, with those below them
	Progress    func(string)

	tmp     string
	builder *builder
	suites  map[string]*suite
	mu      sync.Mutex
	funcs   map[string]map[string]function
	hashes  map[string]string // of suites
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
	_, err = j.hashSuites(pkg) // of what is built now
	if err != nil {
		return err
	}
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

// TestHash changes with the tests of a package and all that they call, and when the named test
// turns out to be shaky. Without a name, it changes with all tests of a target.
func (j *Judge) TestHash(t Target, pkg, test string) (string, error) {
	if test == "" {
		return j.hashSuites(t.Suites...)
	}
	sum, err := j.hashSuites(pkg)
	if err != nil {
		return "", err
	}
	shaky, err := j.knownShaky(pkg, test)
	if err != nil || !shaky {
		return sum, err
	}
	return sum + " shaky", nil
}

// knownShaky says whether a test has failed without a mutant, in this run or in one before.
func (j *Judge) knownShaky(pkg, test string) (bool, error) {
	s := j.suites[pkg]
	if s == nil {
		s = &suite{tests: map[string]testRecord{}}
		err := readJSON(j.recordPath(pkg), &s.tests)
		if err != nil {
			return false, err
		}
	}
	return s.record(test).Shaky, nil
}

// recordPath is the file that records the tests of a package.
func (j *Judge) recordPath(pkg string) string {
	return filepath.Join(j.State, "coverage", strings.ReplaceAll(pkg, "/", "-")+".json")
}

// hashSuites is one hash of the tests of packages, their data and the helpers. It is that of
// the first call: tests that change during a run are not those that judge.
func (j *Judge) hashSuites(suites ...string) (string, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	key := strings.Join(suites, " ")
	if sum, ok := j.hashes[key]; ok {
		return sum, nil
	}
	var files []string
	for _, pkg := range suites {
		tests, err := filepath.Glob(filepath.Join(j.Root, pkg, "*_test.go"))
		if err != nil {
			return "", err
		}
		data, err := filesBelow(filepath.Join(j.Root, pkg, "testdata"))
		if err != nil {
			return "", err
		}
		files = slices.Concat(files, tests, data)
	}
	for _, dir := range j.Helpers {
		found, err := filesBelow(filepath.Join(j.Root, dir))
		if err != nil {
			return "", err
		}
		files = append(files, found...)
	}
	sum, err := hashFiles(j.Root, files)
	if err != nil {
		return "", err
	}
	if j.hashes == nil {
		j.hashes = map[string]string{}
	}
	j.hashes[key] = sum
	return sum, nil
}
