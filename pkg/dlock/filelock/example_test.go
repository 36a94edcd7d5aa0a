package filelock_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/filelock"
)

// Every process on this host that uses the same directory contends for the same locks.
func Example() {
	temp, err := os.MkdirTemp("", "locks")
	if err != nil {
		log.Print(err)
		return
	}
	defer os.RemoveAll(temp)
	locks, err := dlock.New(&dlock.Config{}, dlock.WithBackend(filelock.New(filepath.Join(temp, "locks"))))
	if err != nil {
		log.Print(err)
		return
	}
	defer locks.Close()
	err = locks.Do(context.Background(), "backup", func(context.Context) error {
		fmt.Println("no other process makes a backup now")
		return nil
	})
	fmt.Println(err)
	// Output:
	// no other process makes a backup now
	// <nil>
}
