package memlock_test

import (
	"context"
	"fmt"
	"log"

	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/memlock"
)

// Two Clients on one Store contend with each other, as two processes on one server do.
func Example() {
	store := memlock.New()
	var clients []*dlock.Client
	for range 2 {
		c, err := dlock.New(&dlock.Config{}, dlock.WithBackend(store))
		if err != nil {
			log.Print(err)
			return
		}
		defer c.Close()
		clients = append(clients, c)
	}
	ctx := context.Background()
	fmt.Println(clients[0].TryLock(ctx, "k"))
	fmt.Println(clients[1].TryLock(ctx, "k"))
	fmt.Println(clients[0].Unlock(ctx, "k"))
	fmt.Println(clients[1].TryLock(ctx, "k"))
	// Output:
	// true <nil>
	// false <nil>
	// <nil>
	// true <nil>
}
