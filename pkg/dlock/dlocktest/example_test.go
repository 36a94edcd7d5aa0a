package dlocktest_test

import (
	"context"
	"errors"
	"testing"

	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/dlocktest"
)

// report is the code under test: it must stop when it loses its lock.
func report(ctx context.Context, locks *dlock.Client, step func()) error {
	return locks.Do(ctx, "report", func(ctx context.Context) error {
		step()
		<-ctx.Done()
		return context.Cause(ctx)
	})
}

// A test of code that must stop when its lock is lost.
func Example() {
	_ = func(t *testing.T) { // func TestReportStops(t *testing.T)
		locks := dlocktest.New(t)
		err := report(t.Context(), locks, func() { dlocktest.Lose(t, locks, "report") })
		if !errors.Is(err, dlock.ErrOwnershipLost) {
			t.Error(err)
		}
	}
}
