package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/ceyewan/genesis/lab/internal/soak"
)

// soaks runs the whole API for hours, and fails if something grows.
func soaks(ctx context.Context, args []string) error {
	f := flag.NewFlagSet("soak", flag.ContinueOnError)
	backends := f.String("backends", "redis,redlock,etcd,file,memory", "which of them, all at once; sentinel as well")
	duration := f.Duration("duration", 2*time.Hour, "half of it without faults, and half with rare ones")
	out := f.String("out", "results/soak.json", "the report; samples are written next to it")
	seed := f.Uint64("seed", 1, "for what users do, and which faults there are")
	from := f.String("from", "", "judge these samples of an earlier run instead")
	if err := f.Parse(args); err != nil {
		return err
	}
	report, err := soaked(ctx, soak.Plan{Backends: strings.Split(*backends, ","), Duration: *duration, Seed: *seed}, *out, *from)
	if len(report.Backends) == 0 {
		return err
	}
	report.Write(os.Stdout)
	report.WriteTable(os.Stdout)
	text, encodeErr := json.MarshalIndent(report, "", "  ")
	if err := errors.Join(err, encodeErr, os.WriteFile(*out, text, 0o644)); err != nil {
		return err
	}
	if !report.OK() {
		return fmt.Errorf("something grows; %s has the details", *out)
	}
	return nil
}

func soaked(ctx context.Context, plan soak.Plan, out, from string) (soak.Report, error) {
	if from != "" {
		plan, samples, err := soak.ReadSamples(from)
		return soak.NewReport(plan, samples), err
	}
	return soak.Run(ctx, plan, soak.SamplesPath(out), func(format string, args ...any) {
		fmt.Printf("%s "+format+"\n", append([]any{time.Now().Format(time.TimeOnly)}, args...)...)
	})
}
