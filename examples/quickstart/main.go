// Quickstart is the program of docs/getting-started.md.
package main

import (
	"cmp"
	"context"
	"fmt"
	"log"
	"os"

	"github.com/ceyewan/genesis/pkg/connector"
	"github.com/ceyewan/genesis/pkg/dlock"
)

func main() {
	if err := run(context.Background(), cmp.Or(os.Getenv("REDIS"), "localhost:6379")); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, addr string) error {
	conn, err := connector.NewRedis(&connector.RedisConfig{Addr: addr})
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.Connect(ctx); err != nil {
		return err // says what is wrong: no server, a wrong password, no TLS
	}
	locks, err := dlock.NewRedis(conn, &dlock.Config{Prefix: "shop:"})
	if err != nil {
		return err
	}
	defer locks.Close() // before conn
	return locks.Do(ctx, "order:123", ship)
}

// ship runs in one process at a time. Its ctx ends if the lock is lost.
func ship(ctx context.Context) error {
	guard, _ := dlock.FromContext(ctx)
	fmt.Println("shipping order 123, with fencing token", guard.Token())
	return ctx.Err()
}
