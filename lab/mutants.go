package main

import (
	"context"
	"flag"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ceyewan/genesis/lab/internal/mutant"
	"github.com/ceyewan/genesis/lab/internal/result"
	"github.com/ceyewan/genesis/lab/internal/trial"
)

// mutants runs each broken variant until it is caught, and fails if one is not within
// the given number of schedules.
func mutants(ctx context.Context, args []string) error {
	f := flag.NewFlagSet("mutants", flag.ContinueOnError)
	folder := f.String("results", "results", "folder of results")
	names := f.String("names", "", "which of them; none: all")
	length := f.Duration("duration", 12*time.Second, "length of a schedule")
	hands := f.Int("at-once", 1, "how many mutants are hunted at a time")
	tries := f.Int("schedules", 20, "within how many schedules each must be caught")
	if err := f.Parse(args); err != nil {
		return err
	}
	chosen := slices.Clone(mutant.All)
	if *names != "" {
		chosen = nil
		for name := range strings.SplitSeq(*names, ",") {
			m, ok := mutant.Find(name)
			if !ok || m.Name == mutant.Control.Name {
				return fmt.Errorf("there is no mutant %q", name)
			}
			chosen = append(chosen, m)
		}
	}
	caught := make([]bool, len(chosen))
	err := atOnce(ctx, *hands, len(chosen), func(ctx context.Context, i int) (err error) {
		label := fmt.Sprintf("[%d/%d]", i+1, len(chosen))
		caught[i], err = hunt(ctx, label, chosen[i], *tries, *length, result.Folder(*folder))
		return err
	})
	if err != nil {
		return err
	}
	missed := []string{}
	for i, m := range chosen {
		if !caught[i] {
			missed = append(missed, m.Name)
		}
	}
	if len(missed) > 0 {
		return fmt.Errorf("not caught: %s", strings.Join(missed, ", "))
	}
	return nil
}

// hunt runs schedules until one of them catches the mutant. A verdict that the
// machine may have caused does not count, and one that is about something else.
func hunt(ctx context.Context, label string, m mutant.Mutant, tries int, length time.Duration, folder result.Folder) (bool, error) {
	for n, seed := range m.Seeds(tries, length) {
		spec := trial.Spec{Seed: seed, Topology: m.Topology, Mode: m.In(), Length: length, Mutant: m.Name}
		r, err := conduct(ctx, fmt.Sprintf("%s schedule %d", label, n+1), spec, folder)
		if err != nil {
			return false, err
		}
		if r.Caught() {
			return true, nil
		}
	}
	return false, nil
}
