// The trylock example is a job that cron starts on many hosts at the same time, and that
// must run on only one of them:
//
//	@hourly  trylock -addr redis:6379 -every 1h
//
// The host that gets the lock does the job; the others exit. Start it a few times at
// once:
//
//	for host in a b c; do go run ./examples/trylock & done; wait
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/ceyewan/genesis/pkg/connector"
	"github.com/ceyewan/genesis/pkg/dlock"
)

func main() {
	addr := flag.String("addr", "localhost:6379", "`host:port` of the Redis server")
	every := flag.Duration("every", time.Minute, "how often cron starts the job")
	flag.Parse()
	if err := run(context.Background(), os.Stdout, *addr, *every); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, out io.Writer, addr string, every time.Duration) error {
	conn, err := connector.NewRedis(&connector.RedisConfig{Addr: addr})
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.Connect(ctx); err != nil {
		return fmt.Errorf("%w\nIs Redis there? Start it with \"redis-server\", or name another one with -addr", err)
	}
	locks, err := dlock.NewRedis(conn, &dlock.Config{Prefix: "example:"})
	if err != nil {
		return err
	}
	defer locks.Close()

	// The job may take a second while the clock of another host is two seconds late. That
	// host must still find the lock taken. The lock is therefore kept for half of the
	// interval, however short the job is. This process ends earlier; the lease, which is as
	// long, then keeps the lock.
	const key = "report"
	keep := every / 2
	ours, err := locks.TryLock(ctx, key, dlock.WithMinHold(keep), dlock.WithTTL(keep))
	if err != nil {
		return err
	}
	if !ours {
		fmt.Fprintln(out, "another host does it")
		return nil
	}
	guard, _ := locks.Held(key) // its context ends if the lock is lost
	err = job(guard.Context(), out)
	return errors.Join(err, locks.Unlock(ctx, key))
}

func job(ctx context.Context, out io.Writer) error {
	fmt.Fprintln(out, "this host does it")
	select {
	case <-time.After(100 * time.Millisecond):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
