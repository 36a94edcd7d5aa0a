// The fencing example shows what a lock alone cannot prevent, and a fencing token
// can: two holders withdraw from one account. The first one stands still for longer
// than its lease, the second one takes over, and the late write of the first is
// refused by the database.
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
	// This is how to give the locks a client that is there already.
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

	// The first one gets the lock, and then is as if frozen: nothing renews its lease.
	first, err := locks.Acquire(ctx, "account:1", dlock.WithTTL(time.Second), dlock.WithoutRenewal())
	if err != nil {
		return err
	}
	fmt.Fprintln(out, "first:  has the lock, and freezes")
	second, err := locks.Acquire(ctx, "account:1") // has to wait until the lease is over
	if err != nil {
		return err
	}
	fmt.Fprintln(out, "second: has the lock, with a greater token:", second.Token() > first.Token())
	fmt.Fprintln(out, "second: withdraws 10:", outcome(withdraw(ctx, db, second.Token(), 10)))
	// The first one thaws and does what it was about to do. It did not look at its
	// context; but even if it had, it may have been frozen right after that.
	fmt.Fprintln(out, "first:  withdraws 70:", outcome(withdraw(ctx, db, first.Token(), 70)))
	left, err := balance(ctx, db)
	fmt.Fprintln(out, "the balance is", left)

	lost := first.Unlock(ctx) // says that the lock had been lost
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
