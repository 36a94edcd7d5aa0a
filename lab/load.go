package main

import (
	"context"
	"flag"
	"fmt"
	"time"

	"github.com/ceyewan/genesis/lab/internal/load"
)

// loads measures what many waiters, names and locks cost one process.
func loads(ctx context.Context, args []string) error {
	var s load.Sizes
	f := flag.NewFlagSet("load", flag.ContinueOnError)
	f.IntVar(&s.Waiters, "waiters", 10_000, "on one key")
	f.IntVar(&s.Names, "names", 1_000_000, "distinct keys, each locked once")
	f.IntVar(&s.Locks, "locks", 100_000, "held at once")
	f.DurationVar(&s.Hold, "hold", 10*time.Minute, "for so long, with restarts of the server between")
	if err := f.Parse(args); err != nil {
		return err
	}
	return load.Run(ctx, s, func(f load.Figure) { fmt.Printf("%-66s %12.6g %s\n", f.Name, f.Value, f.Unit) })
}
