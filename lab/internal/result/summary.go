package result

import (
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"github.com/ceyewan/genesis/lab/internal/mutant"
	"github.com/ceyewan/genesis/lab/internal/schedule"
)

// A Figure is one number with the goal that it is held against.
type Figure struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"`
	Goal  string  `json:"goal"`
	OK    bool    `json:"ok"`
}

// A Summary is what all results together say.
type Summary struct {
	Date    time.Time `json:"date"`
	Column  string    `json:"column"` // of goals: tests, pr or nightly
	Figures []Figure  `json:"figures"`
	Failing []string  `json:"failing,omitempty"` // seeds to replay
}

// OK says that all goals are met and no seed fails.
func (s Summary) OK() bool {
	return len(s.Failing) == 0 && !slices.ContainsFunc(s.Figures, func(f Figure) bool { return !f.OK })
}

// goals are the columns of the plan. That of tests has no amounts but one judged trial of
// each topology and mode: what is too rare for a short run, tests of its own see to.
type goals struct {
	length                                            time.Duration // of a schedule that counts
	schedules, operations, losses, ambiguous, mutants int
	bites                                             int // lost updates and refused writes, which show that faults bite
	kills                                             int // SIGKILLs of holders, on each backend
	again                                             int // calls inside a held lock
	faults, looks, others                             int // what struck, looks at what is stored, sections on masters next to one in trouble
	times                                             int // of each time that is measured
}

var columns = map[string]goals{
	"tests": {length: 30 * time.Second},
	"pr":    {length: 30 * time.Second, schedules: 1, operations: 20_000, losses: 20, ambiguous: 100, mutants: 5, bites: 1},
	"nightly": {
		length: time.Minute, schedules: 40, operations: 1_000_000, losses: 300, ambiguous: 5_000, mutants: 20, bites: 1, kills: 200, again: 1_000,
		faults: 5_000, looks: 3_000, others: 1_000, times: 20,
	},
}

// Known says whether there is such a column.
func Known(column string) bool {
	_, ok := columns[column]
	return ok
}

type adder struct {
	Summary
	trials []Result
}

func (a *adder) add(name string, value float64, goal string, ok bool) {
	a.Figures = append(a.Figures, Figure{name, value, goal, ok})
}

func (a *adder) sum(of func(Result) int) (n int) {
	for _, r := range a.trials {
		n += of(r)
	}
	return n
}

func (a *adder) atLeast(name string, n, goal int) {
	a.add(name, float64(n), fmt.Sprintf(">= %d", goal), n >= goal)
}

func (a *adder) none(name string, n int) { a.add(name, float64(n), "0", n == 0) }

// Summarise adds up everything in the folder and stores the summary there. Trials of
// topologies and modes that are not named need not be there.
func (f Folder) Summarise(column string, topologies, modes []string) (Summary, error) {
	trials, mutants, err := f.Load()
	if err != nil {
		return Summary{}, err
	}
	a := &adder{Summary: Summary{Date: time.Now().UTC(), Column: column}}
	stalled := 0
	for _, r := range trials {
		if r.Status() == "stalled" {
			stalled++
			continue
		}
		if r.Status() == "failed" {
			a.Failing = append(a.Failing, r.String())
		}
		a.trials = append(a.trials, r)
	}
	if column == "tests" {
		a.judged(topologies, modes)
	}
	a.amounts(columns[column], topologies)
	a.promises(columns[column])
	if column != "tests" { // where several trials share a busy machine
		a.times(columns[column], topologies)
	}
	a.mutants(columns[column], mutants)
	if column == "tests" {
		a.none("trials that the machine stalled every time", stalled)
	} else { // more seeds make up for them
		a.add("trials that the machine stalled, not counted", float64(stalled), "-", true)
	}
	return a.Summary, writeJSON(filepath.Join(string(f), "summary.json"), a.Summary)
}

// judged demands a trial that was not stalled for each topology and mode.
func (a *adder) judged(topologies, modes []string) {
	for _, topology := range topologies {
		for _, mode := range modes {
			n := a.sum(func(r Result) int { return one(r.Topology == topology && string(r.Mode) == mode) })
			a.atLeast("judged trials "+topology+", "+mode, n, 1)
		}
	}
}

// amounts are how much was tried.
func (a *adder) amounts(g goals, topologies []string) {
	for _, topology := range topologies {
		n := a.sum(func(r Result) int {
			return one(r.Topology == topology && r.Length >= g.length && (r.Mode == schedule.Inside || r.Mode == schedule.Beyond))
		})
		a.atLeast("schedules "+topology, n, g.schedules)
	}
	a.atLeast("lock operations", a.sum(func(r Result) int { return r.Verdict.Operations }), g.operations)
	a.atLeast("operations through the model", a.sum(func(r Result) int { return r.Verdict.Checked }), g.operations)
	a.add("operations beyond the model's limit", float64(a.sum(func(r Result) int { return r.Verdict.Unchecked })), "-", true)
	a.atLeast("calls inside a held lock, for the same key", a.sum(func(r Result) int { return r.Verdict.Reentries }), g.again)
	if slices.Contains(topologies, schedule.Cluster) {
		a.atLeast("sections at other masters while one was in trouble", a.sum(func(r Result) int { return r.Verdict.Others }), g.others)
	}
	a.atLeast("faults", a.sum(func(r Result) int { return total(r.Faults) - r.Faults[string(schedule.OwnFailover)] }), g.faults)
}

// promises are what must never happen, and the proof that it could have.
func (a *adder) promises(g goals) {
	a.none("overlaps inside the assumptions", a.sum(func(r Result) int { return inside(r, r.Verdict.Overlaps) }))
	a.none("stale fenced writes accepted", a.sum(func(r Result) int { return r.Verdict.Stale }))
	a.none("fence regressions", a.sum(func(r Result) int { return r.Verdict.Fences }))
	a.none("ghosts 1 s after a fault was healed, or after the end", a.sum(func(r Result) int { return r.Verdict.Ghosts + r.Verdict.Lingering }))
	a.atLeast("calls without an answer, of which ghosts might have come", a.sum(func(r Result) int { return r.Verdict.Ambiguous }), g.ambiguous)
	a.atLeast("looks at what servers store", a.sum(func(r Result) int { return r.Verdict.Looks }), g.looks)
	a.none("losses later than the server's", a.sum(func(r Result) int { return r.Verdict.LateLosses }))
	a.atLeast("losses whose end at the server was seen", a.sum(func(r Result) int { return r.Verdict.LossesTimed }), g.losses)
	a.none("false losses", a.sum(func(r Result) int { return r.Verdict.FalseLosses }))
	a.atLeast("locks held while a server stood still for up to half a lease", a.sum(func(r Result) int { return r.Verdict.Endured }), g.losses)
	a.none("lost updates of the unfenced store inside", a.sum(func(r Result) int { return inside(r, r.Verdict.Corrupted) }))
	beyond := a.sum(func(r Result) int { return r.Verdict.Corrupted - inside(r, r.Verdict.Corrupted) })
	a.atLeast("lost updates of the unfenced store beyond (the faults bite)", beyond, g.bites)
	a.atLeast("stale writes that the fence refused", a.sum(func(r Result) int { return r.Verdict.Rejected }), g.bites)
	a.add("overlaps beyond the assumptions, as documented", float64(a.sum(func(r Result) int { return r.Verdict.Overlaps - inside(r, r.Verdict.Overlaps) })), "-", true)
}

// mutants counts the broken variants of which some seed was caught.
func (a *adder) mutants(g goals, all []Result) {
	if len(all) == 0 && g.times == 0 {
		return
	}
	caught := map[string]bool{}
	for _, r := range all {
		caught[r.Mutant] = caught[r.Mutant] || r.Caught()
	}
	n := 0
	for name, yes := range caught {
		n += one(yes && name != mutant.Control.Name)
	}
	a.atLeast("mutants caught", n, g.mutants)
	a.add("mutation score, percent", 100*float64(n)/float64(len(mutant.All)), "100", n == len(mutant.All))
}

func inside(r Result, n int) int { return n * one(r.Mode != schedule.Beyond) }

func one(yes bool) int {
	if yes {
		return 1
	}
	return 0
}

func total(of map[string]int) (n int) {
	for _, k := range of {
		n += k
	}
	return n
}
