// Slim is the smallest program that uses locks in Redis. It brings its own client and one
// backend, and links no other client.
//
//	go run ./examples/slim            # Redis on localhost:6379
//	REDIS=host:6379 go run ./examples/slim
package main

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/redislock"
)

func main() {
	if err := run(cmp.Or(os.Getenv("REDIS"), "localhost:6379")); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(addr string) error {
	client := redis.NewClient(&redis.Options{Addr: addr, ContextTimeoutEnabled: true})
	defer client.Close()
	locks, err := dlock.New(&dlock.Config{}, dlock.WithBackend(redislock.New(client)))
	if err != nil {
		return err
	}
	defer locks.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	return locks.Do(ctx, "slim", func(ctx context.Context) error {
		guard, _ := dlock.FromContext(ctx)
		fmt.Println("holding with token", guard.Token())
		return nil
	})
}
