package main

import (
	"context"
	"flag"
	"fmt"
	"time"

	"github.com/ceyewan/genesis/lab/internal/schedule"
	"github.com/ceyewan/genesis/lab/internal/trial"
)

// specFlags are the flags that name one trial.
func specFlags(name string, args []string) (trial.Spec, error) {
	var s trial.Spec
	f := flag.NewFlagSet(name, flag.ContinueOnError)
	f.Uint64Var(&s.Seed, "seed", 1, "the seed")
	f.StringVar(&s.Topology, "topology", schedule.Single, "one of the topologies")
	mode := f.String("mode", string(schedule.Inside), "inside or beyond the assumptions, kills or calm")
	f.DurationVar(&s.Length, "duration", 30*time.Second, "how long it lasts")
	f.DurationVar(&s.Rest, "rest", trial.DefaultRest, "how long a worker rests at most between two locks")
	f.StringVar(&s.Mutant, "mutant", "", "a broken variant in place of ours")
	err := f.Parse(args)
	s.Mode = schedule.Mode(*mode)
	return s, err
}

func printPlan(_ context.Context, args []string) error {
	s, err := specFlags("plan", args)
	if err != nil {
		return err
	}
	plan, err := schedule.Plan(s.Seed, s.Topology, s.Mode, s.Length)
	fmt.Println("setup:", s.Setup())
	for _, f := range plan {
		fmt.Println(f)
	}
	return err
}
