// Runner runs the tests of packages like go test, several packages at a time. It keeps the linked programs in build/tests: to
// link those of all packages takes a minute or two of two processors, and go test does that each time. Go links those again that
// have changed.
//
// Its arguments are packages, by default all of the module. Flags for the tests follow after "--".
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"
)

// options are what the caller asks for.
type options struct {
	module   string
	race     bool
	only     bool // build, and run nothing
	atOnce   int
	first    []string // folders of packages that take long
	limit    time.Duration
	trace    time.Duration // when a program that hangs outside of its tests is to print where, and to end
	kill     time.Duration // when one that does not end is killed
	packages []string
	flags    []string // of the tests
	programs string   // the folder of the programs
}

func main() { os.Exit(status(os.Args[1:])) }

// status runs the command, and returns its exit status.
func status(args []string) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGQUIT)
	defer stop()
	o, err := parse(args)
	if errors.Is(err, flag.ErrHelp) {
		return 0
	}
	if err == nil {
		err = o.run(ctx, os.Stdout)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "runner:", err)
		return 1
	}
	return 0
}

func parse(args []string) (*options, error) {
	o := &options{}
	if i := slices.Index(args, "--"); i >= 0 {
		args, o.flags = args[:i], args[i+1:]
	}
	f := flag.NewFlagSet("runner", flag.ContinueOnError)
	f.StringVar(&o.module, "C", ".", "the folder of the module")
	f.BoolVar(&o.race, "race", true, "with the race detector")
	f.BoolVar(&o.only, "build", false, "only build the programs")
	f.IntVar(&o.atOnce, "at-once", runtime.NumCPU(), "how many packages are tested at the same time")
	f.DurationVar(&o.limit, "limit", 20*time.Minute, "end a program that takes longer")
	first := f.String("first", "", "folders of packages that begin first, in this order, separated by commas")
	if err := f.Parse(args); err != nil {
		return nil, err
	}
	if o.limit <= 0 {
		return nil, fmt.Errorf("the limit must be positive, not %v", o.limit)
	}
	if o.packages = f.Args(); len(o.packages) == 0 {
		o.packages = []string{"./..."}
	}
	o.trace, o.kill = o.limit+2*time.Minute, o.limit+4*time.Minute
	o.first = strings.Split(*first, ",")
	folder := strings.NewReplacer("/", "-", ".", "main").Replace(filepath.ToSlash(filepath.Clean(o.module)))
	if !o.race {
		folder += "-norace"
	}
	var err error
	o.programs, err = filepath.Abs(filepath.Join("build", "tests", folder))
	return o, err
}

// run builds the programs, and runs them unless the caller only wants them built.
func (o *options) run(ctx context.Context, out io.Writer) error {
	all, err := o.list(ctx)
	if err == nil {
		err = o.build(ctx, all)
	}
	if err != nil || o.only {
		return err
	}
	return o.test(ctx, all, out)
}
