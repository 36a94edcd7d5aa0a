// The leader example is a service of which one process leads. Start it in several terminals:
//
//	go run ./examples/leader
//
// Then stop the one that leads with Ctrl-C, or kill it: another one leads. It uses files, so it needs no
// server; on several hosts, use Redis or etcd instead.
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
	"syscall"

	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/election"
	"github.com/ceyewan/genesis/pkg/dlock/filelock"
)

func main() {
	dir := flag.String("dir", filepath.Join(os.TempDir(), "leader-example-"+fmt.Sprint(os.Getuid())), "`folder` for the locks")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Stdout, *dir)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// run stands for election until ctx ends.
func run(ctx context.Context, out io.Writer, dir string) error {
	locks, err := dlock.New(&dlock.Config{}, dlock.WithBackend(filelock.New(dir)))
	if err != nil {
		return err
	}
	defer locks.Close()
	me := os.Getpid()
	e, err := election.New(locks, "service", election.Callbacks{
		OnElected: func(ctx context.Context, term int64) {
			fmt.Fprintf(out, "%d leads, term %d\n", me, term)
			<-ctx.Done() // here it would work
		},
		OnResigned: func(term int64, _ error) { fmt.Fprintf(out, "%d has led, term %d\n", me, term) },
	}, election.WithValue(fmt.Sprint("process ", me)))
	if err != nil {
		return err
	}
	if err := e.Run(ctx); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}
