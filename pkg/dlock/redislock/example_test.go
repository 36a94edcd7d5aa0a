package redislock_test

import (
	"context"
	"log"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/redislock"
)

// The client stays yours: Close of the Client does not close it.
func Example() {
	client := redis.NewClient(&redis.Options{Addr: "localhost:6379", ContextTimeoutEnabled: true})
	defer client.Close()
	locks, err := dlock.New(&dlock.Config{Prefix: "shop:"}, dlock.WithBackend(redislock.New(client)))
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

// A lock counts as acquired when a replica has it, or not at all within 50 ms.
func ExampleWithMinReplicas() {
	client := redis.NewFailoverClient(&redis.FailoverOptions{MasterName: "main", SentinelAddrs: []string{"localhost:26379"}})
	defer client.Close()
	backend := redislock.New(client, redislock.WithMinReplicas(1, 50*time.Millisecond))
	locks, err := dlock.New(&dlock.Config{}, dlock.WithBackend(backend))
	if err != nil {
		log.Print(err)
		return
	}
	defer locks.Close()
}
