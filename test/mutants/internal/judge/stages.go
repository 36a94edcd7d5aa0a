package judge

import (
	"cmp"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/ceyewan/genesis/test/mutants/internal/mutate"
)

// A stage is a run of some tests of one suite.
type stage struct {
	name  string
	suite *suite
	tests []string
	env   []string
	race  bool
	most  time.Duration // the limit, if there is a better one than usual
}

// Names of stages, in the order in which they run.
const (
	Quickest   = "quickest"   // the quickest tests that reach the line
	Simulation = "simulation" // the simulator, with few seeds
	Covering   = "covering"   // the other tests that reach the line
	Whole      = "whole"      // all tests of the suites, with the race detector
)

// StageNames are the names in order.
var StageNames = []string{Quickest, Simulation, Covering, Whole}

// How much time the tests of the first stages take on the unmutated code.
const (
	quickestSeconds = 4
	coveringSeconds = 30
)

// stages are what a mutant has to survive: first those that are quick, and then the whole
// suites.
func (j *Judge) stages(m mutate.Mutant, t Target) (quick, whole []stage, err error) {
	if path.Ext(m.File) == ".lua" {
		quick, whole = j.luaStages(t)
		return quick, whole, nil
	}
	funcs, err := j.functions(m.File)
	if err != nil {
		return nil, nil, err
	}
	f, inFunction := funcs[m.Func]
	var then []stage
	whole = j.simulations(t, true)
	for _, pkg := range t.Suites {
		s := j.suites[pkg]
		distance := map[string]int{}
		for _, name := range s.names() {
			if inFunction {
				distance[name] = s.record(name).distance(m, f)
			}
		}
		first, more, slow := j.groups(s, distance)
		quick = append(quick, stage{name: Quickest, suite: s, tests: first})
		then = append(then, stage{name: Covering, suite: s, tests: more}, stage{name: Covering, suite: s, tests: slow})
		whole = append(whole, stage{name: Whole, suite: s, tests: s.names(), race: true})
	}
	return slices.Concat(quick, j.simulations(t, false), then), whole, nil
}

// groups divides the tests by the time that they take: those for the first seconds, some
// more, and the slow ones that run the line. Simulations have stages of their own.
func (j *Judge) groups(s *suite, distance map[string]int) (quick, more, slow []string) {
	names := slices.DeleteFunc(s.names(), func(name string) bool { return distance[name] == 2 || j.isSimulation(s.pkg, name) })
	slices.SortStableFunc(names, func(a, b string) int {
		return cmp.Or(cmp.Compare(distance[a], distance[b]), cmp.Compare(s.seconds(a), s.seconds(b)))
	})
	sum := 0.0
	for _, name := range names {
		sum += s.seconds(name)
		switch {
		case sum <= quickestSeconds:
			quick = append(quick, name)
		case sum <= coveringSeconds:
			more = append(more, name)
		case distance[name] == 0:
			slow = append(slow, name)
		}
	}
	return quick, more, slow
}

// luaStages are the same for all mutants of scripts, whose lines cannot be followed: the
// simulation of the scripts, then the tests that are named after scripts, and then the others, each in the order
// of their duration. The race detector has nothing to say about a script.
func (j *Judge) luaStages(t Target) (quick, whole []stage) {
	quick = j.simulations(t, false)
	for _, pkg := range t.Suites {
		s := j.suites[pkg]
		distance := map[string]int{}
		for _, name := range s.names() {
			if !strings.HasPrefix(name, "TestScript") {
				distance[name] = 1
			}
		}
		first, more, _ := j.groups(s, distance)
		slow := slices.DeleteFunc(s.names(), func(name string) bool {
			return slices.Contains(first, name) || slices.Contains(more, name) || j.isSimulation(pkg, name)
		})
		quick = append(quick, stage{name: Quickest, suite: s, tests: first}, stage{name: Covering, suite: s, tests: more})
		whole = append(whole, stage{name: Whole, suite: s, tests: slow})
	}
	return quick, append(whole, j.simulations(t, true)...)
}

// simulations of the suites of a target, with few seeds or as the test command runs them.
func (j *Judge) simulations(t Target, full bool) []stage {
	var stages []stage
	for _, sim := range j.Simulations {
		s := j.suites[sim.Suite]
		if !slices.Contains(t.Suites, sim.Suite) || !slices.Contains(s.names(), sim.Test) {
			continue
		}
		run := stage{name: Simulation, suite: s, tests: []string{sim.Test}, env: sim.Few}
		if full {
			run.name, run.env = Whole, nil
		}
		stages = append(stages, run)
	}
	return stages
}

func (j *Judge) isSimulation(pkg, test string) bool {
	return slices.ContainsFunc(j.Simulations, func(s Simulator) bool { return s.Suite == pkg && s.Test == test })
}

// limit is when a run hangs. Tests with the race detector take about twice as long.
func (j *Judge) limit(s stage) time.Duration {
	if s.most > 0 {
		return s.most
	}
	seconds := s.suite.seconds(s.tests...)
	if s.race {
		seconds *= 2
	}
	return j.Grace + time.Duration(3*seconds*float64(time.Second))
}

// only is the pattern for exactly these tests.
func only(tests ...string) string {
	quoted := make([]string, len(tests))
	for i, name := range tests {
		quoted[i] = regexp.QuoteMeta(name)
	}
	return "^(" + strings.Join(quoted, "|") + ")$"
}
