package faultdriver_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/faultdriver"
	"github.com/ceyewan/genesis/pkg/dlock/memlock"
)

// The answers to releases are lost: the lock is free, but Unlock cannot know it.
func Example() {
	faults := faultdriver.New(memlock.New(), 1, faultdriver.Rule{Op: faultdriver.Release, Fault: faultdriver.LoseAnswer})
	locks, err := dlock.New(&dlock.Config{DefaultTTL: 300 * time.Millisecond}, dlock.WithBackend(faults))
	if err != nil {
		log.Print(err)
		return
	}
	defer locks.Close()
	guard, err := locks.Acquire(context.Background(), "k")
	if err != nil {
		log.Print(err)
		return
	}
	err = guard.Unlock(context.Background())
	faults.Clear()
	fmt.Println(errors.Is(err, dlock.ErrUnknownOutcome), faults.Injected(faultdriver.LoseAnswer) > 0)
	// Output: true true
}
