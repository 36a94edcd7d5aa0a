// The cache example reads reports from a cache in Redis, and computes those that are missing. Start it in several
// terminals, on any number of hosts:
//
//	go run ./examples/cache monday tuesday
//
// Each report is computed once, although many goroutines of many processes ask for it at the same time. Kill the process
// that computes: another one does it after the lease. It needs Redis.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/once"
	"github.com/ceyewan/genesis/pkg/dlock/redislock"
)

func main() {
	var r reader
	flag.StringVar(&r.redis, "redis", "localhost:6379", "`address` of Redis")
	flag.IntVar(&r.callers, "callers", 20, "how many goroutines ask for each report")
	flag.DurationVar(&r.takes, "takes", 2*time.Second, "how long it takes to compute a report")
	flag.DurationVar(&r.cfg.Wait, "wait", 0, "how long to wait for another process")
	flag.DurationVar(&r.cfg.Lease, "lease", 5*time.Second, "how long to wait for a process that has died")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := r.run(ctx, os.Stdout, flag.Args())
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

type reader struct {
	redis   string
	callers int
	takes   time.Duration
	cfg     once.CacheConfig
}

// run asks for the reports one after the other.
func (r *reader) run(ctx context.Context, out io.Writer, names []string) error {
	client := redis.NewClient(&redis.Options{Addr: r.redis})
	defer client.Close()
	locks, err := dlock.New(&dlock.Config{Prefix: "locks:"}, dlock.WithBackend(redislock.New(client)))
	if err != nil {
		return err
	}
	defer locks.Close()
	cache, err := once.NewCache(locks, reports{client}, r.cfg)
	if err != nil {
		return err
	}
	for _, name := range names {
		errs := make([]error, r.callers)
		var callers sync.WaitGroup
		for i := range errs {
			callers.Go(func() {
				_, errs[i] = cache.Get(ctx, "report:"+name, func(ctx context.Context) (string, error) {
					return compute(ctx, out, name, r.takes)
				})
			})
		}
		callers.Wait()
		if err := errors.Join(errs...); err != nil {
			return err
		}
		fmt.Fprintf(out, "%d has %s\n", os.Getpid(), name)
	}
	return nil
}

// compute takes a while.
func compute(ctx context.Context, out io.Writer, name string, takes time.Duration) (string, error) {
	fmt.Fprintf(out, "%d computes %s\n", os.Getpid(), name)
	select {
	case <-time.After(takes):
		return "the report of " + name, nil
	case <-ctx.Done():
		return "", context.Cause(ctx)
	}
}

// reports is a Store in Redis. It keeps a report for an hour.
type reports struct{ client *redis.Client }

func (r reports) Get(ctx context.Context, key string) (string, bool, error) {
	text, err := r.client.Get(ctx, key).Result()
	if errors.Is(err, redis.Nil) {
		return "", false, nil
	}
	return text, err == nil, err
}

func (r reports) Set(ctx context.Context, key, text string) error {
	return r.client.Set(ctx, key, text, time.Hour).Err()
}
