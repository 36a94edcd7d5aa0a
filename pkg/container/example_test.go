package container_test

import (
	"context"
	"fmt"
	"log"

	"github.com/ceyewan/genesis/pkg/container"
	"github.com/ceyewan/genesis/pkg/dlock"
)

// One value of the configuration selects the backend: this one needs no server.
func Example() {
	app, err := container.New(&container.Config{DLock: &dlock.Config{Backend: dlock.BackendMemory}})
	if err != nil {
		log.Print(err)
		return
	}
	defer app.Close()
	ctx := context.Background()
	if err := app.Connect(ctx); err != nil {
		log.Print(err)
		return
	}
	err = app.DLock.Do(ctx, "order:123", func(context.Context) error {
		fmt.Println("working")
		return nil
	})
	fmt.Println(err)
	// Output:
	// working
	// <nil>
}
