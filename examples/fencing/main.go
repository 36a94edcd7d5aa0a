// The fencing example shows what a fencing token prevents and a lock alone cannot. Two
// holders withdraw from one account. The first pauses for longer than its lease, the
// second takes over, and the database refuses the late write of the first.
//
//	go run -C examples/fencing .
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/redislock"
)

func main() {
	addr := flag.String("addr", "localhost:6379", "`host:port` of the Redis server")
	file := flag.String("db", filepath.Join(os.TempDir(), "genesis-example.db"), "`file` of the SQLite database")
	flag.Parse()
	if err := run(context.Background(), os.Stdout, *addr, *file); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, out io.Writer, addr, file string) error {
	// The locks use a Redis client that the program already has.
	client := redis.NewClient(&redis.Options{Addr: addr, ContextTimeoutEnabled: true})
	defer client.Close()
	if err := client.Ping(ctx).Err(); err != nil {
		return fmt.Errorf("%w\nIs Redis there? Start it with \"redis-server\", or name another one with -addr", err)
	}
	locks, err := dlock.New(&dlock.Config{Prefix: "example:"}, dlock.WithBackend(redislock.New(client)))
	if err != nil {
		return err
	}
	defer locks.Close()
	db, err := open(ctx, file)
	if err != nil {
		return err
	}
	defer db.Close()

	// The first holder gets the lock and then behaves like a paused process: its lease is not
	// renewed.
	first, err := locks.Acquire(ctx, "account:1", dlock.WithTTL(time.Second), dlock.WithoutRenewal())
	if err != nil {
		return err
	}
	fmt.Fprintln(out, "first:  has the lock, and freezes")
	second, err := locks.Acquire(ctx, "account:1") // waits until the lease ends
	if err != nil {
		return err
	}
	fmt.Fprintln(out, "second: has the lock, with a greater token:", second.Token() > first.Token())
	fmt.Fprintln(out, "second: withdraws 10:", outcome(withdraw(ctx, db, second.Token(), 10)))
	// The first holder resumes and makes its write. It did not check its context. Even if it
	// had, it could have been paused right after the check.
	fmt.Fprintln(out, "first:  withdraws 70:", outcome(withdraw(ctx, db, first.Token(), 70)))
	left, err := balance(ctx, db)
	fmt.Fprintln(out, "the balance is", left)

	lost := first.Unlock(ctx) // reports that the lock was lost
	if !errors.Is(lost, dlock.ErrOwnershipLost) {
		err = errors.Join(err, fmt.Errorf("the first one should have lost its lock: %w", lost))
	}
	return errors.Join(err, second.Unlock(ctx))
}

func outcome(err error) string {
	if err != nil {
		return err.Error()
	}
	return "done"
}
