package sharedtimeout_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock/internal/sharedtimeout"
)

func deadline(ctx context.Context, t *testing.T) time.Time {
	t.Helper()
	at, ok := ctx.Deadline()
	if !ok {
		t.Fatal("no deadline")
	}
	return at
}

// Calls that begin within a quarter of the timeout share a context; no call gets a context with
// less than three quarters left, or one with another timeout.
func TestSharedWithin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		parent, cancel := context.WithCancel(t.Context())
		var s sharedtimeout.Contexts
		const span = time.Second
		first := s.Within(parent, span)
		time.Sleep(span/4 - time.Millisecond)
		if s.Within(parent, span) != first {
			t.Error("the context is not shared")
		}
		if other := s.Within(parent, 2*span); other == first || time.Until(deadline(other, t)) != 2*span {
			t.Errorf("another timeout ends in %v", time.Until(deadline(other, t)))
		}
		time.Sleep(time.Millisecond)
		second := s.Within(parent, span)
		if second == first || time.Until(deadline(second, t)) != span {
			t.Errorf("after a quarter it ends in %v", time.Until(deadline(second, t)))
		}
		time.Sleep(3 * span / 4)
		if synctest.Wait(); first.Err() == nil || second.Err() != nil {
			t.Errorf("first %v, second %v", first.Err(), second.Err())
		}
		cancel()
		if second.Err() == nil {
			t.Error("it outlives its parent")
		}
	})
}
