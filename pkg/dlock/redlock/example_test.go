package redlock_test

import (
	"context"
	"log"

	"github.com/redis/go-redis/v9"

	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/redlock"
)

// The servers are independent of each other, and there is an odd number of them.
func Example() {
	var clients []redis.UniversalClient
	for _, addr := range []string{"redis-1:6379", "redis-2:6379", "redis-3:6379"} {
		client := redis.NewClient(&redis.Options{Addr: addr, ContextTimeoutEnabled: true})
		defer client.Close()
		clients = append(clients, client)
	}
	locks, err := dlock.New(&dlock.Config{}, dlock.WithBackend(redlock.New(clients)))
	if err != nil {
		log.Print(err)
		return
	}
	defer locks.Close()
	err = locks.Do(context.Background(), "order:123", func(ctx context.Context) error {
		return ctx.Err() // the work, which stops when ctx ends
	})
	if err != nil {
		log.Print(err)
	}
}
