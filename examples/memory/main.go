// The memory example shows five workers that compete for one key. One of them holds it at
// a time, and they get it in the order in which they asked.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/memlock"
)

func main() {
	if err := run(context.Background(), os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, out io.Writer) error {
	client, err := dlock.New(&dlock.Config{Backend: "memory"}, dlock.WithBackend(memlock.New()))
	if err != nil {
		return err
	}
	start := time.Now()
	say := func(worker int, format string, args ...any) {
		fmt.Fprintf(out, "%6s  worker %d  %s\n", time.Since(start).Round(10*time.Millisecond), worker, fmt.Sprintf(format, args...))
	}
	var workers sync.WaitGroup
	failed := make(chan error, 5)
	for worker := range 5 {
		workers.Go(func() {
			say(worker, "wants the lock")
			err := client.Do(ctx, "printer", func(ctx context.Context) error {
				guard, _ := dlock.FromContext(ctx)
				say(worker, "has it, with fencing token %d", guard.Token())
				select {
				case <-time.After(200 * time.Millisecond): // the work
				case <-ctx.Done(): // the lock was lost: stop
				}
				say(worker, "is done")
				return ctx.Err()
			})
			if err != nil {
				failed <- err
			}
		})
	}
	workers.Wait()
	close(failed)
	if err := <-failed; err != nil {
		return err
	}
	return client.Close()
}
