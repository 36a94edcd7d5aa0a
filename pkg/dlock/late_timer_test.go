package dlock_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/memlock"
)

// The client of the backend may notice the deadline of an attempt before the context does. The error
// of a wait that ends like this has the cause of the attempt before, too.
func TestClientNoticesTheDeadlineFirst(t *testing.T) {
	virtual(t, func(t *testing.T) {
		attempts, first := 0, 0
		store := &scripted{Opener: memlock.New(), remote: true, acquire: func(ctx context.Context, _ driver.Driver, _ driver.Request) (driver.State, error) {
			attempts++
			end, _ := ctx.Deadline()
			if attempts == 1 {
				return driver.State{}, driver.Classify(fmt.Errorf("%w: still loading", driver.ErrNotReady), driver.Transient)
			}
			early := make(chan struct{})
			time.AfterFunc(time.Until(end), func() { close(early) })
			<-early
			if ctx.Err() == nil {
				first++
			}
			return driver.State{}, errors.New("i/o timeout")
		}}
		c := client(t, store, dlock.Config{})
		for range 100 { // either may be first
			attempts = 0
			_, err := c.Acquire(ctx, "k", dlock.WithWait(time.Second))
			if !errors.Is(err, dlock.ErrUnknownOutcome) || !errors.Is(err, dlock.ErrNotReady) || !strings.Contains(err.Error(), "still loading") {
				t.Fatalf("%d attempts: %v", attempts, err)
			}
		}
		if first == 0 {
			t.Error("the context was always first")
		}
	})
}
