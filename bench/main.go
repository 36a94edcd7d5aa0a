// Command bench compares Genesis DLock with other lock libraries and with the least
// that a lock could do, all in one run. docs/benchmark.md says how.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"time"

	"github.com/ceyewan/genesis/bench/peer"
	"github.com/ceyewan/genesis/bench/report"
	"github.com/ceyewan/genesis/bench/workload"
)

func main() {
	workload.ServeIfWorker()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, os.Args[1:], os.Stdout)
	stop()
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// run measures what the arguments ask for and writes the report, also of a run that
// ends early.
func run(ctx context.Context, args []string, out io.Writer) error {
	o, err := parse(args, out)
	if err != nil {
		return err
	}
	started := time.Now()
	o.run.Progress = func(line string) {
		_, _ = fmt.Fprintf(out, "%6s  %s\n", time.Since(started).Round(time.Second), line)
	}
	o.run.Progress("starting servers")
	load := machineLoad()
	site, err := workload.StartSite(ctx)
	if err != nil {
		return err
	}
	versions := site.Versions(ctx)
	ended := o.run.Do(ctx, site)
	rep := report.New(o.run, started, versions)
	rep.Load = load
	if ended != nil {
		rep.Ended = ended.Error()
	}
	err = errors.Join(ended, site.Stop(), rep.Write(o.out))
	_, werr := fmt.Fprintf(out, "\n%s\nwritten to %s\n", rep.Text(), o.out)
	return errors.Join(err, werr)
}

type options struct {
	run *workload.Run
	out string
}

func parse(args []string, out io.Writer) (*options, error) {
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.SetOutput(out)
	plan := flags.String("plan", "full", "how much to measure: full, quick or tiny, which shows that everything works")
	quick := flags.Bool("quick", false, "the same as -plan quick: three rounds, three minutes")
	peers := flags.String("peers", "", "only these peers, by name, separated by commas")
	workloads := flags.String("workloads", "", "only these workloads, by name, separated by commas")
	rounds := flags.Int("rounds", 0, "so many rounds instead of the plan's")
	dir := flags.String("out", "results", "the directory of the report")
	if err := flags.Parse(args); err != nil {
		return nil, err
	}
	if *quick {
		*plan = "quick"
	}
	r := &workload.Run{}
	for _, p := range []workload.Plan{workload.Full, workload.Quick, workload.Tiny} {
		if p.Name == *plan {
			r.Plan = p
		}
	}
	if r.Plan.Name == "" || flags.NArg() > 0 || *rounds < 0 {
		return nil, fmt.Errorf("no plan %q, arguments that are not flags, or a negative number of rounds", *plan)
	}
	if *rounds > 0 {
		r.Plan.Rounds = *rounds
	}
	var errs [2]error
	r.Peers, errs[0] = choose(peer.All(), *peers, func(p peer.Peer) string { return p.Info().Name })
	r.Workloads, errs[1] = choose(workload.All(), *workloads, func(w workload.Workload) string { return w.Name })
	return &options{r, *dir}, errors.Join(errs[:]...)
}

// choose takes those that are named, all if none is, in the order in which they are.
func choose[T any](all []T, names string, name func(T) string) ([]T, error) {
	if names == "" {
		return all, nil
	}
	wanted := map[string]bool{}
	for n := range strings.SplitSeq(names, ",") {
		wanted[n] = true
	}
	var chosen []T
	for _, one := range all {
		if wanted[name(one)] {
			chosen = append(chosen, one)
			delete(wanted, name(one))
		}
	}
	for n := range wanted {
		return nil, fmt.Errorf("there is no %q", n)
	}
	return chosen, nil
}

// machineLoad is what else the machine is doing, where Linux says so.
func machineLoad() string {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return ""
	}
	load, _, _ := strings.Cut(string(text), " ")
	return load
}
