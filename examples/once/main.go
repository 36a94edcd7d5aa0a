// The once example is a service with a scheduled job. Start it in several terminals, on any number of hosts:
//
//	go run ./examples/once
//
// One of them runs the job in each interval, and the others skip. Kill any of them, also in the middle of the job: the job
// still runs at most once per interval. It needs Redis.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/once"
	"github.com/ceyewan/genesis/pkg/dlock/redislock"
)

func main() {
	addr := flag.String("redis", "localhost:6379", "`address` of Redis")
	every := flag.Duration("every", 10*time.Second, "the interval of the job")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Stdout, *addr, *every)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// run schedules the job until ctx ends.
func run(ctx context.Context, out io.Writer, addr string, every time.Duration) error {
	client := redis.NewClient(&redis.Options{Addr: addr})
	defer client.Close()
	locks, err := dlock.New(&dlock.Config{}, dlock.WithBackend(redislock.New(client)), dlock.WithAdmin())
	if err != nil {
		return err
	}
	defer locks.Close() // after the job has ended
	job, err := once.New(locks, "report", every)
	if err != nil {
		return err
	}
	for {
		ran, err := job.Do(ctx, report(out))
		if err != nil && ctx.Err() == nil {
			fmt.Fprintln(os.Stderr, err) // the next tick tries again
		}
		if !ran {
			if last, found, err := job.Last(ctx); err == nil && found {
				fmt.Fprintf(out, "%d skips: process %d has run the job, %s\n", os.Getpid(), last.PID, last.Result())
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(time.Until(time.Now().Truncate(every).Add(every))): // by the clock of this host
		}
	}
}

// report is the job. It takes a moment, and stops if the lock is lost.
func report(out io.Writer) func(context.Context) error {
	return func(ctx context.Context) error {
		guard, _ := dlock.FromContext(ctx)
		fmt.Fprintf(out, "%d runs the job, token %d\n", os.Getpid(), guard.Token())
		select {
		case <-time.After(200 * time.Millisecond):
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
