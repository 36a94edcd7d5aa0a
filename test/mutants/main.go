// Command mutants finds out what the tests would not notice: it makes one small mistake at a
// time in the code of the engine, the drivers and the scripts, and runs the tests until one
// fails. docs/reliability.md describes how to use it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/ceyewan/genesis/test/mutants/internal/judge"
	"github.com/ceyewan/genesis/test/mutants/internal/mutate"
)

const usage = `usage: go run ./test/mutants [flags] [PACKAGE | FILE | FOLDER/...]...

Makes mutants of the given packages and files, of all if none are given, runs the tests on
each, and prints how many were caught. Results are kept in build/mutants and are not computed
again as long as they hold. Exits with 1 if a file has a lower score than the goal, or if results
are missing.

"go run ./test/mutants repairs -help" says how repaired defects are taken back.

`

type options struct {
	seed               uint64
	n, jobs            int
	quick, fresh, list bool
	report             bool
	goal               float64
	patterns           []string
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := command(ctx, os.Args[1:])
	stop()
	switch {
	case errors.Is(err, flag.ErrHelp):
	case err != nil:
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(1)
	}
}

func parse(args []string) (o options, err error) {
	flags := flag.NewFlagSet("mutants", flag.ContinueOnError)
	flags.Uint64Var(&o.seed, "seed", 1, "chooses the sample")
	flags.IntVar(&o.n, "n", 30, "mutants of each file; 0: all")
	flags.IntVar(&o.jobs, "jobs", 2, "mutants that are judged at a time")
	flags.BoolVar(&o.quick, "quick", false, "leave out the whole suites: what only they catch survives")
	flags.BoolVar(&o.fresh, "fresh", false, "judge again what has a result, and measure the tests again")
	flags.BoolVar(&o.list, "list", false, "print the mutants of the sample and run nothing")
	flags.BoolVar(&o.report, "report", false, "run nothing: the table of the results that there are")
	flags.Float64Var(&o.goal, "goal", 90, "the score that each file must have, in percent")
	flags.Usage = func() {
		fmt.Fprint(os.Stderr, usage)
		flags.PrintDefaults()
	}
	err = flags.Parse(args)
	o.patterns = flags.Args()
	if err == nil && (o.n < 0 || o.jobs < 1) {
		err = errors.New("-n must not be negative, and -jobs must be positive")
	}
	return o, err
}

func command(ctx context.Context, args []string) error {
	root, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", module).Output()
	if err != nil {
		return fmt.Errorf("find the root of the repository: %w", err)
	}
	if len(args) > 0 && args[0] == "repairs" {
		return repairsCommand(ctx, strings.TrimSpace(string(root)), args[1:])
	}
	o, err := parse(args)
	if err != nil {
		return err
	}
	known, err := parseEquivalents(equivalentText)
	if err != nil {
		return err
	}
	r := &run{options: o, root: strings.TrimSpace(string(root)), known: known, progress: newProgress()}
	defer r.progress.end()
	return r.all(ctx, targets)
}

// A run is one use of the command.
type run struct {
	options
	root     string
	known    equivalents
	progress *progress
	judge    *judge.Judge
	results  *results
	sources  []source
}

func (r *run) all(ctx context.Context, targets []judge.Target) error {
	err := sources(ctx, r.root, targets, r.patterns, func(s source, c *judge.Checker) (err error) {
		r.progress.say("choosing mutants of " + s.file)
		s.mutants, err = sample(s, c, r.seed, r.n, r.known)
		r.sources = append(r.sources, s)
		return err
	})
	if err != nil {
		return err
	}
	if r.list {
		r.print()
		return nil
	}
	state := filepath.Join(r.root, "build", "mutants")
	r.judge = &judge.Judge{
		Root: r.root, Module: module, State: state, Jobs: r.jobs, Quick: r.quick, Fresh: r.fresh,
		Grace:   30 * time.Second,
		Targets: targets, Simulations: simulators, Helpers: helpers, Progress: r.progress.say,
	}
	r.results, err = loadResults(filepath.Join(state, "results.jsonl"))
	if err != nil {
		return err
	}
	if !r.report {
		err = r.judgeAll(ctx)
		if err != nil {
			return err
		}
	}
	return r.conclude(os.Stdout)
}

func (r *run) print() {
	r.progress.end()
	for _, s := range r.sources {
		for _, m := range s.mutants {
			fmt.Printf("%s:%d  %s\n  %s\n", m.File, m.Line, m.Kind, line(m))
		}
	}
}

// judgeAll judges the mutants without a result.
func (r *run) judgeAll(ctx context.Context) error {
	var suites []string
	for _, s := range r.sources {
		for _, pkg := range s.target.Suites {
			if !slices.Contains(suites, pkg) {
				suites = append(suites, pkg)
			}
		}
	}
	cleanUp, err := r.judge.Prepare(ctx, suites)
	if err != nil {
		return err
	}
	defer cleanUp()
	for _, test := range r.judge.Unreliable() {
		r.progress.say("has failed without a mutant: " + test)
	}
	for {
		quick, whole, err := r.todo()
		if err != nil || len(quick)+len(whole) == 0 {
			return err
		}
		r.fresh = false // a later turn is for tests that have turned out to be shaky since
		if len(quick) > 0 {
			whole = nil // not before the quick stages have found what they can
		}
		if err := r.judgeSome(ctx, quick, false); err != nil {
			return err
		}
		if err := r.judgeSome(ctx, whole, true); err != nil {
			return err
		}
	}
}

// judgeSome runs the quick stages or the whole suites on some mutants.
func (r *run) judgeSome(ctx context.Context, todo []task, whole bool) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	workers := make([]*judge.Worker, min(r.jobs, len(todo)))
	for i := range workers {
		w, err := r.judge.Worker()
		if err != nil {
			return err
		}
		workers[i] = w
	}
	queue := make(chan task)
	var wg sync.WaitGroup
	var done atomic.Int64
	for _, w := range workers {
		wg.Go(func() {
			for t := range queue {
				if err := r.one(ctx, w, t, whole, fmt.Sprintf("%d of %d", done.Add(1), len(todo))); err != nil {
					cancel(err)
				}
			}
		})
	}
	for _, t := range todo {
		select {
		case queue <- t:
		case <-ctx.Done():
		}
	}
	close(queue)
	wg.Wait()
	return context.Cause(ctx)
}

type task struct {
	source source
	mutant mutate.Mutant
}

// todo are the mutants without a result, and those of which the whole suites have not been
// run yet. The first ones of all files come first.
func (r *run) todo() (quick, whole []task, err error) {
	most := 0
	for _, s := range r.sources {
		most = max(most, len(s.mutants))
	}
	for i := range most {
		for _, s := range r.sources {
			if i >= len(s.mutants) {
				continue
			}
			one, holds, err := r.results.find(r.judge, s, s.mutants[i])
			switch {
			case err != nil:
				return nil, nil, err
			case r.fresh || !holds:
				quick = append(quick, task{s, s.mutants[i]})
			case one.Status == judge.Survived && one.Quick && !r.quick:
				whole = append(whole, task{s, s.mutants[i]})
			}
		}
	}
	return quick, whole, nil
}

// one judges a mutant and stores the result.
func (r *run) one(ctx context.Context, w *judge.Worker, t task, whole bool, count string) error {
	begun := time.Now()
	v, err := w.Judge(ctx, t.mutant, t.source.text, t.source.target, whole)
	if err != nil {
		return err
	}
	tests, err := r.judge.TestHash(t.source.target, v.Suite, v.Test)
	if err != nil {
		return err
	}
	by := v.Status
	if v.Status == judge.Caught {
		by = fmt.Sprintf("%s by %s (%s, %s)", v.Status, v.Test, v.Stage, v.Why)
	}
	r.progress.say(fmt.Sprintf("%s: %s: %s", count, by, t.mutant))
	return r.results.add(result{
		ID: t.mutant.ID(), Mutant: t.mutant, Verdict: v, Seconds: time.Since(begun).Seconds(), At: begun,
		FileHash: textHash(t.source.text), TestHash: tests, Quick: !whole,
	})
}

// conclude prints the table, and fails if a file is below the goal or lacks results.
func (r *run) conclude(w io.Writer) error {
	r.progress.end()
	var rows []*row
	var found []result
	for _, s := range r.sources {
		file := &row{file: s.file, sample: len(s.mutants)}
		rows = append(rows, file)
		for _, m := range s.mutants {
			one, holds, err := r.results.find(r.judge, s, m)
			if err != nil {
				return err
			}
			if holds {
				file.add(one)
				found = append(found, one)
			}
		}
	}
	below, missing := table(w, rows, r.goal)
	survivors(w, found)
	var errs []error
	if below > 0 {
		errs = append(errs, fmt.Errorf("%d files are below %.0f %%", below, r.goal))
	}
	if missing > 0 {
		errs = append(errs, fmt.Errorf("%d mutants have no result, or one from before a change of the file or the tests", missing))
	}
	return errors.Join(errs...)
}
