package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/ceyewan/genesis/test/mutants/internal/judge"
)

// A row is one file of the table.
type row struct {
	file             string
	sample           int // mutants that were chosen
	judged           int // those with a result that holds
	caught, survived int
	stages           map[string]int
	timeouts         int
}

func (r *row) add(one result) {
	r.judged++
	switch one.Status {
	case judge.Caught:
		r.caught++
		if r.stages == nil {
			r.stages = map[string]int{}
		}
		r.stages[one.Stage]++
		if one.Why == "timeout" {
			r.timeouts++
		}
	case judge.Survived:
		r.survived++
	}
}

func (r *row) mutants() int { return r.caught + r.survived }

// score is the share of mutants that were caught, in percent.
func (r *row) score() float64 {
	if r.mutants() == 0 {
		return 100
	}
	return 100 * float64(r.caught) / float64(r.mutants())
}

// table prints the rows and returns how many are below the goal, and how many mutants have no
// result.
func table(w io.Writer, rows []*row, goal float64) (below, missing int) {
	out := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(out, "judged\tcaught\tsurvived\tscore\t%s\ttimeout\t  file\n", strings.Join(judge.StageNames, "\t"))
	sum := &row{file: "all", stages: map[string]int{}}
	for _, r := range rows {
		mark := ""
		if r.score() < goal {
			below++
			mark = " (below the goal)"
		}
		r.print(out, mark)
		sum.sample += r.sample
		sum.judged += r.judged
		sum.caught += r.caught
		sum.survived += r.survived
		sum.timeouts += r.timeouts
		for name, n := range r.stages {
			sum.stages[name] += n
		}
	}
	sum.print(out, "")
	_ = out.Flush() // to a terminal or a buffer
	return below, sum.sample - sum.judged
}

func (r *row) print(w io.Writer, mark string) {
	score := "-"
	if r.mutants() > 0 {
		score = fmt.Sprintf("%.0f %%", r.score())
	}
	fmt.Fprintf(w, "%d of %d\t%d\t%d\t%s\t", r.judged, r.sample, r.caught, r.survived, score)
	for _, name := range judge.StageNames {
		fmt.Fprintf(w, "%d\t", r.stages[name])
	}
	fmt.Fprintf(w, "%d\t  %s%s\n", r.timeouts, r.file, mark)
}

// survivors prints those that are left, as equivalent.txt would have them.
func survivors(w io.Writer, all []result) {
	title := "\nsurvivors:\n"
	for _, one := range all {
		if one.Status == judge.Survived {
			fmt.Fprintf(w, "%s%s:%d\n  %s\n", title, one.File, one.Line, line(one.Mutant))
			title = ""
		}
	}
}

// progress shows how far the run is: in place on a terminal, else in lines.
type progress struct {
	mu       sync.Mutex
	terminal bool
	begun    time.Time
}

func newProgress() *progress {
	info, err := os.Stderr.Stat()
	return &progress{terminal: err == nil && info.Mode()&os.ModeCharDevice != 0, begun: time.Now()}
}

// say shows a step that the next one replaces.
func (p *progress) say(text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.terminal {
		fmt.Fprintf(os.Stderr, "\r\x1b[K%.150s", text)
		return
	}
	fmt.Fprintf(os.Stderr, "%6.0fs  %s\n", time.Since(p.begun).Seconds(), text)
}

// end leaves the terminal with an empty line.
func (p *progress) end() {
	if p.terminal {
		fmt.Fprint(os.Stderr, "\r\x1b[K")
	}
}
