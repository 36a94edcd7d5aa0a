package cli

import (
	"context"
	"errors"
	"os/signal"
	"time"

	"github.com/spf13/cobra"

	"github.com/ceyewan/genesis/internal/cli/bench"
)

// A benchmark is one call of dlock bench.
type benchmark struct {
	*app
	cmd  *cobra.Command
	plan bench.Plan

	section       time.Duration
	asJSON, quiet bool
	page          string // where to write HTML

	sessions []*session
}

func (w *app) benchCommand() *cobra.Command {
	c := &benchmark{app: w}
	cmd := &cobra.Command{
		Use:   "bench [flags]",
		Short: "Measure how a backend shares one lock among few clients and many",
		Long: `Bench lets clients compete for one lock: each takes it, holds it for the section, gives
it back and asks again. It shows how long they waited (mean, percentiles, longest),
how many acquisitions there were in a second, how fairly they were shared, and what an
acquisition cost, for an empty section and for one of --section. Every figure is the
median of the rounds, with the smallest and the largest.

All the while it checks that no two clients hold the lock at once, and that fencing
tokens increase.

The key is random unless you name one or the backend is one file, so no lock of yours
is touched; but the backend is busy for as long as it takes, --duration × --rounds for
each number of clients and each section. Ctrl-C ends it, shows what was measured, and
leaves no lock behind.

Exit codes:
  1    two clients held the lock at once, a token did not increase, or a lock was lost
  64   wrong arguments              69   the backend fails
  74   the report cannot be written
  75   another client has the lock that --key names
  128+N ended by signal N`,
		Example: `  dlock bench
  DLOCK_BACKEND=redis://localhost dlock bench --html report.html
  dlock bench --clients 1,16 --section 5ms --duration 10s --rounds 5 --json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c.cmd = cmd
			return c.do()
		},
	}
	f := cmd.Flags()
	f.IntSliceVar(&c.plan.Clients, "clients", []int{2, 8, 64}, "how many clients compete; one experiment for each `number`")
	f.Var(newDuration(&c.section, time.Millisecond), "section", "how long the lock is held, in addition to an empty section; 0 measures that one alone")
	f.Var(newDuration(&c.plan.Duration, 2*time.Second), "duration", "how long a round takes")
	f.IntVar(&c.plan.Rounds, "rounds", bench.LeastRounds, "how many rounds each experiment has, 3 or more")
	f.StringVar(&c.plan.Key, "key", "", "the lock to compete for, instead of a random one that is removed afterwards")
	f.BoolVar(&c.asJSON, "json", false, "write the report as JSON")
	f.StringVar(&c.page, "html", "", "write the report with charts to this `file` as well")
	f.BoolVarP(&c.quiet, "quiet", "q", false, "show no progress")
	return cmd
}

func (c *benchmark) do() (err error) {
	c.plan.Sections = []time.Duration{0}
	if c.section != 0 {
		c.plan.Sections = append(c.plan.Sections, c.section)
	}
	if err := c.plan.Check(); err != nil {
		return usage(c.cmd, "%w", err)
	}
	html, err := c.openPage()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, html.close()) }()
	ctx, stop := untilSignal(c.cmd.Context())
	defer stop()
	c.cmd.SetContext(ctx)
	report, err := c.fight(ctx)
	if report != nil && report.Measured() {
		if failed := c.show(report, html); failed != nil {
			return failed
		}
	}
	if report != nil && !report.Exclusion.Held {
		return exitWith(ExitFinding, "mutual exclusion failed; see the report")
	}
	return c.verdict(ctx, err)
}

// verdict gives an error its code. A signal shows in many errors, and none of them is
// worth a word.
func (c *benchmark) verdict(ctx context.Context, err error) error {
	var s signalled
	if errors.As(context.Cause(ctx), &s) {
		return &exit{exitSignal + int(s.number()), nil}
	}
	return backendError(err)
}

// untilSignal returns a context that ends with a signal. A second one ends the
// process, as if nothing listened.
func untilSignal(parent context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(parent)
	signals := listen()
	done := make(chan struct{})
	go func() {
		for {
			select {
			case s := <-signals:
				if ends(s) {
					signal.Stop(signals)
					cancel(signalled{s})
					return
				}
			case <-done:
				return
			}
		}
	}()
	return ctx, func() {
		signal.Stop(signals)
		close(done)
		cancel(nil)
	}
}

// fight connects all clients, measures, and gives everything back.
func (c *benchmark) fight(ctx context.Context) (*bench.Report, error) {
	random := c.plan.Key == ""
	if random {
		c.plan.Key = throwAway()
	}
	defer c.disband(random)              //nolint:contextcheck // what is closed outlives the context
	if err := c.assemble(); err != nil { //nolint:contextcheck // the command has the context
		return nil, err
	}
	if only := c.sessions[0].OnlyKey; random && only != "" {
		c.plan.Key = only
	}
	watch := newProgress(c)
	c.plan.Progress = watch.step
	report, err := bench.Run(ctx, &c.plan)
	watch.stop()
	b := c.sessions[0].Backend
	report.Program, report.Backend, report.Where = version().Version, b.Name, b.Where
	var s signalled
	if errors.As(err, &s) {
		report.Ended = s.Error()
	} else if err != nil {
		report.Ended = err.Error()
	}
	return report, err
}
