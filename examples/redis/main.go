// The redis example takes a lock in a Redis server, works and releases the lock. Start it
// twice at the same time: the second process waits.
//
//	go run ./examples/redis & go run ./examples/redis
package main

import (
	"context"
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
	flag.Parse()
	if err := run(context.Background(), os.Stdout, *addr); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, out io.Writer, addr string) (err error) {
	// The connector creates a client and owns it. Nothing is sent yet.
	conn, err := connector.NewRedis(&connector.RedisConfig{Addr: addr})
	if err != nil {
		return err
	}
	defer conn.Close()
	// Connect is optional. It reports problems early that would otherwise show up later.
	if err := conn.Connect(ctx); err != nil {
		return fmt.Errorf("%w\nIs Redis there? Start it with \"redis-server\", or name another one with -addr", err)
	}
	locks, err := dlock.NewRedis(conn, &dlock.Config{Prefix: "example:"})
	if err != nil {
		return err
	}
	defer locks.Close() // before conn

	fmt.Fprintln(out, "waiting for the lock")
	guard, err := locks.Acquire(ctx, "report", dlock.WithWait(time.Minute)) // ctx limits the wait, not the hold
	if err != nil {
		return err
	}
	defer dlock.UnlockInto(&err, guard) // err says if the lock was lost: another process may then have worked too
	fmt.Fprintln(out, "the lock is ours, with fencing token", guard.Token())
	if err := work(guard.Context(), out); err != nil {
		return err
	}
	return store(guard.Context(), conn.Client(), guard.Token(), "done")
}

// work takes a while. It stops when its context ends, because the lock is then lost.
func work(ctx context.Context, out io.Writer) error {
	for step := 1; step <= 3; step++ {
		select {
		case <-time.After(200 * time.Millisecond):
			fmt.Fprintf(out, "step %d of 3\n", step)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}
