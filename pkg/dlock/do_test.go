package dlock_test

import (
	"context"
	"testing"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/faultdriver"
)

// A function that runs until the caller's deadline may return a moment before the caller's context
// ends. The release must not be sent with a context that is about to end.
func TestDoUntilTheDeadlineReleasesOnce(t *testing.T) {
	for range 50 {
		virtual(t, func(t *testing.T) {
			_, faults := faulty(faultdriver.Rule{Op: faultdriver.Release, Fault: faultdriver.DelayAnswer, Delay: 10 * time.Millisecond})
			c := client(t, faults, dlock.Config{})
			limited, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			err := c.Do(limited, "k", func(inner context.Context) error {
				<-inner.Done()
				return nil
			})
			elapse(time.Second) // for cleanup, which must not be necessary
			if n := faults.Calls(faultdriver.Release); err != nil || n != 1 {
				t.Errorf("%d releases, %v", n, err)
			}
		})
	}
}
