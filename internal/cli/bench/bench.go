// Package bench lets some clients fight for one key, the classic experiment on a
// lock, and reports how long they waited, how many turns each of them got, and
// whether two of them ever held the key at once.
package bench

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock"
)

// A Plan is what to measure, and with what.
type Plan struct {
	Key      string
	Clients  []int           // how many fight, one experiment for each
	Sections []time.Duration // how long the key is held, one experiment for each
	Duration time.Duration   // of a round
	Rounds   int             // of each experiment

	// Lockers are the clients, as many as the largest of Clients.
	Lockers []*dlock.Client
	// Sent is how many commands all Lockers have sent so far; nil if they are not counted.
	Sent func() int64
	// Progress is called when a round begins, and again when it has ended.
	Progress func(Step)
}

// A Step is one round, for those who watch.
type Step struct {
	Number, Steps int // counted from 1
	Round         int
	Clients       int
	Section       time.Duration
	Taken         func() int64 // acquisitions so far
	Ended         *Round       // nil while it runs
}

// Run takes the experiments in turns, so that a disturbance of the machine meets all
// of them alike, and returns the rounds that were measured, also when it ends early:
// with the error of a backend, or with the cause of ctx.
func Run(ctx context.Context, p *Plan) (*Report, error) {
	c := &benchmark{Plan: p}
	report := p.newReport()
	err := c.warmUp(ctx)
	for round := 1; round <= p.Rounds && err == nil; round++ {
		for i := range report.Results {
			if err = c.measure(ctx, round, i, &report.Results[i]); err != nil {
				break
			}
		}
	}
	report.finish(&c.witness)
	if err == nil {
		err = context.Cause(ctx)
	}
	return report, err
}

// A benchmark is a Plan under way.
type benchmark struct {
	*Plan
	witness witness
	steps   int
}

// busyFor is how long another client may have the key before we give up: it was meant
// to be ours.
const busyFor = 10 * time.Second

// warmUp lets every client take the key once, so that no round pays for connections,
// scripts and leases.
func (c *benchmark) warmUp(ctx context.Context) error {
	if err := c.once(ctx, 0, dlock.WithWait(busyFor)); err != nil {
		return err
	}
	errs := make([]error, len(c.Lockers))
	var wg sync.WaitGroup
	for w := 1; w < len(c.Lockers); w++ {
		wg.Go(func() { errs[w] = c.once(ctx, w) })
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// once takes the key and gives it back.
func (c *benchmark) once(ctx context.Context, w int, opts ...dlock.LockOption) error {
	g, err := c.Lockers[w].Acquire(ctx, c.Key, opts...)
	if err != nil {
		return err
	}
	c.witness.enter(w, g.Token())
	c.witness.leave(w)
	return c.release(ctx, g)
}

func (c *benchmark) measure(ctx context.Context, round, i int, result *Result) error {
	if context.Cause(ctx) != nil {
		return context.Cause(ctx)
	}
	// A client that gave up at the end of the last round may still be leaving the queue.
	if err := c.once(ctx, 0); err != nil {
		return err
	}
	c.steps++
	section := c.Sections[i/len(c.Clients)]
	r := newRound(c, result.Clients, section)
	step := Step{
		Number: c.steps, Steps: c.Rounds * len(c.Clients) * len(c.Sections), Round: round,
		Clients: result.Clients, Section: section, Taken: r.taken.Load,
	}
	c.reportStep(step)
	measured, err := r.run(ctx)
	if measured.Acquisitions > 0 || err == nil {
		result.Rounds = append(result.Rounds, measured)
	}
	step.Ended = &measured
	c.reportStep(step)
	return err
}

func (c *benchmark) reportStep(s Step) {
	if c.Progress != nil {
		c.Progress(s)
	}
}

// Check refuses a Plan that measures nothing.
func (p *Plan) Check() error {
	seen := map[int]bool{}
	for _, n := range p.Clients {
		if n < 1 || n > MostClients || seen[n] {
			return fmt.Errorf("%d clients: not between 1 and %d, or named twice", n, MostClients)
		}
		seen[n] = true
	}
	longest := slices.Max(append(p.Sections, 0))
	switch {
	case len(p.Clients) == 0:
		return fmt.Errorf("no number of clients")
	case p.Rounds < LeastRounds || p.Rounds > 1000:
		return fmt.Errorf("%d rounds: not between %d, below which there is no spread, and 1000", p.Rounds, LeastRounds)
	case slices.Min(append(p.Sections, 0)) < 0:
		return fmt.Errorf("the section cannot be negative")
	case p.Duration < 10*time.Millisecond || p.Duration > time.Hour:
		return fmt.Errorf("a round of %v: not between 10ms and 1h", p.Duration)
	case longest > p.Duration/4:
		return fmt.Errorf("a section of %v leaves no time for turns in a round of %v: at most a quarter of it", longest, p.Duration)
	}
	return nil
}

// The limits of a Plan.
const (
	MostClients = 1000
	LeastRounds = 3
)
