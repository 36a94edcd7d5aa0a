// Command lab is the fault lab: it starts real servers, has worker processes lock,
// work and unlock, disturbs all of them by a seeded schedule, and judges what
// happened. docs/reliability.md describes the method.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/ceyewan/genesis/lab/internal/soak"
	"github.com/ceyewan/genesis/lab/internal/worker"
)

const usage = `usage: go run -C lab . COMMAND [flags]

  run      schedules on all topologies, in both modes
  replay   one seed again, with a report
  mutants  that each broken variant is caught
  load     many waiters, names and locks through one Client
  soak     everything for hours, and whether something grows
  plan     print the schedule of a seed
`

func main() {
	if err := command(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "lab:", err)
		os.Exit(1)
	}
}

func command(args []string) error {
	if len(args) == 0 {
		fmt.Fprint(os.Stderr, usage)
		return fmt.Errorf("no command")
	}
	if args[0] == "worker" {
		orders, err := worker.Decode(args[1])
		if err != nil {
			return err
		}
		return worker.Main(orders)
	}
	if args[0] == soak.ChildCommand {
		return soak.Main(args[1], os.Stdin, os.Stdout)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	commands := map[string]func(context.Context, []string) error{
		"run": run, "replay": replay, "mutants": mutants, "plan": printPlan, "load": loads, "soak": soaks,
	}
	do, ok := commands[args[0]]
	if !ok {
		fmt.Fprint(os.Stderr, usage)
		return fmt.Errorf("no command %q", args[0])
	}
	return do(ctx, args[1:])
}
