package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/ceyewan/genesis/lab/internal/report"
	"github.com/ceyewan/genesis/lab/internal/result"
	"github.com/ceyewan/genesis/lab/internal/schedule"
	"github.com/ceyewan/genesis/lab/internal/trial"
)

// repeats is how often a trial is run again when the machine stalled it.
const repeats = 3

// options are the flags of a series of trials.
type options struct {
	folder     result.Folder
	topologies []string
	modes      []string
	length     time.Duration
	first      uint64
	seeds      uint64
	budget     time.Duration
	resume     bool
	atOnce     int
	rest       time.Duration
	column     string
}

func parseRun(args []string) (o options, err error) {
	f := flag.NewFlagSet("run", flag.ContinueOnError)
	folder := f.String("results", "results", "folder of results")
	topologies := f.String("topologies", strings.Join(schedule.Topologies, ","), "which of them")
	modes := f.String("modes", string(schedule.Inside)+","+string(schedule.Beyond), "inside or beyond the assumptions; kills: of workers only; calm: nothing")
	f.DurationVar(&o.length, "duration", 30*time.Second, "length of a schedule")
	f.Uint64Var(&o.first, "first", 1, "first seed")
	f.Uint64Var(&o.seeds, "seeds", 1, "number of seeds for each topology and mode")
	f.DurationVar(&o.budget, "budget", 0, "begin no schedule after this long; 0: no limit")
	f.BoolVar(&o.resume, "resume", false, "leave out seeds that have a result")
	f.IntVar(&o.atOnce, "at-once", 1, "how many schedules run at a time")
	f.DurationVar(&o.rest, "rest", trial.DefaultRest, "how long a worker rests at most between two locks; more where several run at a time")
	f.StringVar(&o.column, "goals", "pr", "tests, pr or nightly")
	err = f.Parse(args)
	if err == nil && !result.Known(o.column) {
		err = fmt.Errorf("there are no goals %q", o.column)
	}
	o.folder, o.topologies, o.modes = result.Folder(*folder), strings.Split(*topologies, ","), strings.Split(*modes, ",")
	return o, err
}

// run goes through seeds, for each through all topologies, so that a series that is
// cut short has seen all of them.
func run(ctx context.Context, args []string) error {
	o, err := parseRun(args)
	if err != nil {
		return err
	}
	return o.runWith(ctx, func(ctx context.Context, label string, spec trial.Spec) (result.Result, error) {
		return conduct(ctx, label, spec, o.folder)
	})
}

// An attempt runs a trial, repeats it if need be, and stores what it showed.
type attempt func(ctx context.Context, label string, spec trial.Spec) (result.Result, error)

// runWith adds up what there is also if it was told to stop or some trial could not be carried
// out, but that is a failure.
func (o options) runWith(ctx context.Context, try attempt) error {
	err := o.conductAll(ctx, try)
	if ctx.Err() != nil {
		err = fmt.Errorf("the run was interrupted: %w", errors.Join(ctx.Err(), err))
	}
	return errors.Join(err, conclude(o))
}

// conductAll runs all trials that there is time for. Those that the machine stalled among
// others, or that could not be carried out, are then tried again, one at a time.
func (o options) conductAll(ctx context.Context, try attempt) error {
	begin, all := time.Now(), o.specs()
	again, errs := make([]bool, len(all)), make([]error, len(all))
	do := func(ctx context.Context, i int) error {
		if _, done := o.folder.Find(all[i]); o.resume && done {
			return nil
		}
		if o.budget > 0 && time.Since(begin) > o.budget {
			return nil
		}
		label := fmt.Sprintf("[%d/%d %s]", i+1, len(all), time.Since(begin).Round(time.Second))
		r, err := try(ctx, label, all[i])
		errs[i] = err
		switch {
		case errors.Is(err, trial.ErrCrash): // which no repetition makes good, now or later
			again[i] = false
			errs[i] = errors.Join(err, o.folder.Save(result.Crashed(all[i], err)))
			fmt.Printf("%s %s: FAILED: %v\n", label, all[i], err)
		case err != nil:
			again[i] = true
			fmt.Printf("%s %s: NOT CARRIED OUT: %v\n", label, all[i], err)
		default:
			again[i] = r.Status() == "stalled"
		}
		return context.Cause(ctx)
	}
	err := atOnce(ctx, o.atOnce, len(all), do)
	if err == nil {
		err = atOnce(ctx, 1, len(all), func(ctx context.Context, i int) error {
			if !again[i] {
				return nil
			}
			return do(ctx, i)
		})
	}
	return errors.Join(append(errs, err)...)
}

// atOnce does n things in order, at most limit of them at a time. The first error ends the others.
func atOnce(ctx context.Context, limit, n int, do func(ctx context.Context, i int) error) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(max(limit, 1))
	for i := range n {
		group.Go(func() error {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			return do(ctx, i)
		})
	}
	return group.Wait()
}

func (o options) specs() (all []trial.Spec) {
	for seed := o.first; seed < o.first+o.seeds; seed++ {
		for _, topology := range o.topologies {
			for _, mode := range o.modes {
				all = append(all, trial.Spec{Seed: seed, Topology: topology, Mode: schedule.Mode(mode), Length: o.length, Rest: o.rest})
			}
		}
	}
	return all
}

// conduct runs a trial until the machine lets it, a few times at most, and stores
// what it showed.
func conduct(ctx context.Context, label string, spec trial.Spec, folder result.Folder) (result.Result, error) {
	for n := 0; ; n++ {
		say := func(format string, args ...any) { fmt.Printf("%s %s: %s\n", label, spec, fmt.Sprintf(format, args...)) }
		v, e, err := trial.Run(ctx, spec, say)
		if err != nil {
			return result.Result{}, err
		}
		r := result.New(spec, v, e, n)
		if r.Status() == "failed" {
			r.Timeline, err = report.Timeline(e, v)
			if err != nil {
				return result.Result{}, err
			}
		}
		say("%s: %d operations, %d sections, %d through the model, %d overlaps, %d losses, %d stale writes refused", strings.ToUpper(r.Status()),
			v.Operations, v.Sections, v.Checked, v.Overlaps, v.Losses, v.Rejected)
		for i, x := range v.Violations {
			if i == 5 {
				say("  and %d more", len(v.Violations)-i)
				break
			}
			say("  %s %s: %s", x.Oracle, x.Key, x.Detail)
		}
		if r.Status() != "stalled" || n == repeats {
			return r, folder.Save(r)
		}
	}
}

// conclude writes the summary and the report, and fails if the figures do.
func conclude(o options) error {
	s, err := o.folder.Summarise(o.column, o.topologies, o.modes)
	if err != nil {
		return err
	}
	for _, f := range s.Figures {
		mark := "ok  "
		if !f.OK {
			mark = "MISS"
		}
		fmt.Printf("%s %-70s %12.6g   goal %s\n", mark, f.Name, f.Value, f.Goal)
	}
	if err := report.Write(o.folder, s); err != nil {
		return err
	}
	for _, spec := range s.Failing {
		fmt.Fprintln(os.Stderr, "failing:", spec)
	}
	if !s.OK() {
		return fmt.Errorf("goals were missed; %s has the details", o.folder+"/report.html")
	}
	return nil
}

// replay runs one seed and shows its timeline.
func replay(ctx context.Context, args []string) error {
	spec, err := specFlags("replay", args)
	if err != nil {
		return err
	}
	r, err := conduct(ctx, "[replay]", spec, result.Folder(os.TempDir()+"/dlock-lab"))
	if err != nil {
		return err
	}
	if r.Timeline != "" {
		path := os.TempDir() + "/dlock-lab-" + r.Name() + ".html"
		page, err := report.Page(r)
		if err != nil {
			return err
		}
		if err := os.WriteFile(path, page, 0o644); err != nil {
			return err
		}
		fmt.Println("timeline:", path)
	}
	if spec.Mutant != "" {
		return nil
	}
	return judged(r)
}

// judged is nil if a trial passed. One that the machine stalled every time did not.
func judged(r result.Result) error {
	switch r.Status() {
	case "failed":
		return fmt.Errorf("%s failed: %+v", r.Spec, r.Verdict.Violations)
	case "stalled":
		return fmt.Errorf("%s proves nothing, the machine stalled it %d times: %+v", r.Spec, r.Repeats+1, r.Verdict.Violations)
	}
	return nil
}
