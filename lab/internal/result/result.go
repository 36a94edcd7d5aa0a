// Package result keeps what trials showed, one file for each seed, and adds it up.
package result

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"html/template"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/ceyewan/genesis/lab/internal/event"
	"github.com/ceyewan/genesis/lab/internal/mutant"
	"github.com/ceyewan/genesis/lab/internal/oracle"
	"github.com/ceyewan/genesis/lab/internal/trial"
)

// A Result is what one seed showed.
type Result struct {
	trial.Spec
	Date    time.Time       `json:"date"`
	Code    string          `json:"code"`   // of the program that made it; see Code
	Faults  map[string]int  `json:"faults"` // that struck, by kind
	Repeats int             `json:"repeats,omitempty"`
	Verdict *oracle.Verdict `json:"verdict"`
	// Timeline is the picture of a failure, a piece of HTML, and Excerpt what was
	// logged around it.
	Timeline template.HTML `json:"timeline,omitempty"`
	Excerpt  []event.Event `json:"excerpt,omitempty"`
}

// Code identifies this program, with the library and the oracles that are in it: results of
// another one show nothing of this.
var Code = sync.OnceValue(func() string {
	path, err := os.Executable()
	if err != nil {
		return "unknown"
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return "unknown"
	}
	return fmt.Sprintf("%x", sha256.Sum256(text))[:16]
})

// Name identifies the trial among all.
func (r Result) Name() string {
	name := fmt.Sprintf("%s-%s-%d-%ds", r.Topology, r.Mode, r.Seed, int(r.Length.Seconds()))
	if r.Mutant != "" {
		name = r.Mutant + "-" + name
	}
	return name
}

// Status is passed, failed, or stalled: then the machine was to blame and the trial
// does not count.
func (r Result) Status() string {
	switch {
	case r.Verdict.Passed():
		return "passed"
	case r.Verdict.Stalled():
		return "stalled"
	}
	return "failed"
}

// Caught says whether an oracle that is to see the mistake of the mutant has seen it, and no stall of the machine
// excuses that.
func (r Result) Caught() bool {
	m, _ := mutant.Find(r.Mutant)
	return slices.ContainsFunc(r.Verdict.Violations, func(x oracle.Violation) bool { return !x.Stalled && slices.Contains(m.By, x.Oracle) })
}

// New makes the Result of a trial.
func New(spec trial.Spec, v *oracle.Verdict, e *oracle.Evidence, repeats int) Result {
	r := Result{Spec: spec, Date: time.Now().UTC(), Faults: map[string]int{}, Repeats: repeats, Verdict: v}
	for _, f := range e.Faults {
		r.Faults[string(f.Kind)]++
	}
	if r.Status() == "failed" {
		r.Excerpt = excerpt(v, e)
	}
	return r
}

// Crashed is the Result of a trial that a crash of a worker has ended: it has failed.
func Crashed(spec trial.Spec, err error) Result {
	v := &oracle.Verdict{Violations: []oracle.Violation{{Oracle: "crash", Detail: err.Error()}}}
	return Result{Spec: spec, Date: time.Now().UTC(), Faults: map[string]int{}, Verdict: v}
}

// excerpts are for how many violations the log is kept.
const excerpts = 3

// excerpt is what was logged about the keys of the first violations, around them.
func excerpt(v *oracle.Verdict, e *oracle.Evidence) (kept []event.Event) {
	for i, x := range v.Violations {
		if i == excerpts || x.From == 0 {
			break
		}
		from, to := x.From-int64(2*e.TTL), x.To+int64(time.Second)
		for _, ev := range e.Events {
			if ev.At >= from && ev.At <= to && (ev.Key == x.Key || ev.Key == "") {
				kept = append(kept, ev)
			}
		}
		for _, d := range e.Deaths {
			if d.At >= from && d.At <= to && d.Key == x.Key {
				kept = append(kept, event.Event{At: d.At, Kind: "death", Key: d.Key, Fence: d.Fence, Note: d.Cause})
			}
		}
	}
	slices.SortStableFunc(kept, func(a, b event.Event) int { return int(min(max(a.At-b.At, -1), 1)) })
	return kept
}

// A Folder holds results.
type Folder string

func (f Folder) path(r Result) string {
	kind := "seeds"
	if r.Mutant != "" {
		kind = "mutants"
	}
	return filepath.Join(string(f), kind, r.Name()+".json")
}

// Save writes a result, over an older one of the same seed.
func (f Folder) Save(r Result) error {
	r.Code = Code()
	return writeJSON(f.path(r), r)
}

// Find returns the stored result of a trial, if there is one of this code that counts.
func (f Folder) Find(spec trial.Spec) (Result, bool) {
	r, err := read(f.path(Result{Spec: spec}))
	return r, err == nil && r.Code == Code() && r.Status() != "stalled"
}

// Load returns all results of trials, and all of mutants, that this code has made.
func (f Folder) Load() (trials, mutants []Result, err error) {
	if trials, err = f.load("seeds"); err != nil {
		return nil, nil, err
	}
	mutants, err = f.load("mutants")
	return trials, mutants, err
}

func (f Folder) load(kind string) (all []Result, err error) {
	paths, err := filepath.Glob(filepath.Join(string(f), kind, "*.json"))
	if err != nil {
		return nil, err
	}
	for _, path := range paths {
		r, err := read(path)
		if err != nil {
			return nil, err
		}
		if r.Code == Code() {
			all = append(all, r)
		}
	}
	return all, nil
}

func read(path string) (r Result, err error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return r, err
	}
	if err = json.Unmarshal(text, &r); err != nil {
		return r, fmt.Errorf("%s: %w", path, err)
	}
	return r, nil
}

func writeJSON(path string, value any) error {
	text, err := json.MarshalIndent(value, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, append(text, '\n'), 0o644)
}
