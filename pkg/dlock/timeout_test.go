package dlock_test

import (
	"context"
	"testing"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/internal/sharedtimeout"
	"github.com/ceyewan/genesis/pkg/dlock/memlock"
)

// contexts returns a backend and the contexts that its Acquire was called with.
func contexts(remote bool) (*scripted, *[]context.Context) {
	var seen []context.Context
	s := &scripted{Opener: memlock.New(), remote: remote}
	s.acquire = func(ctx context.Context, d driver.Driver, r driver.Request) (driver.State, error) {
		seen = append(seen, ctx)
		return d.Acquire(ctx, r)
	}
	return s, &seen
}

// Calls with a long timeout share a timer, which may end up to a quarter early. A short timeout is
// not shared, and is exact.
func TestShortTimeoutsAreNotShared(t *testing.T) {
	for _, tc := range []struct {
		name        string
		ttl         time.Duration
		first, next time.Duration // the timeouts of two calls
	}{
		{"short", 60 * time.Millisecond, 60 * time.Millisecond, 60 * time.Millisecond},
		{"long", 8 * second, 2 * second, 2*second - 10*time.Millisecond},
	} {
		virtual(t, func(t *testing.T) {
			s, seen := contexts(true)
			c := client(t, s, dlock.Config{DefaultTTL: tc.ttl})
			for i, want := range []time.Duration{tc.first, tc.next} {
				unlock(t, acquire(t, c, "k"))
				at, limited := (*seen)[i].Deadline()
				if left := time.Until(at); !limited || left != want {
					t.Errorf("call %d of a %s lease is limited to %v, want %v", i, tc.name, left, want)
				}
				elapse(10 * time.Millisecond)
			}
		})
	}
}

// A Driver can tell without cost whether its caller may cancel.
func TestDriverSeesWhetherItsCallerCancels(t *testing.T) {
	virtual(t, func(t *testing.T) {
		s, seen := contexts(true)
		c := client(t, s, dlock.Config{})
		unlock(t, acquire(t, c, "k"))
		if _, ok := (*seen)[0].(sharedtimeout.Uncancelled); !ok {
			t.Errorf("a context that never ends comes as a %T", (*seen)[0])
		}
		cancellable, cancel := context.WithCancel(ctx)
		defer cancel()
		g, err := c.Acquire(cancellable, "k")
		if err != nil {
			t.Fatal(err)
		}
		unlock(t, g)
		if _, ok := (*seen)[1].(*sharedtimeout.Joined); !ok {
			t.Errorf("a context that may end comes as a %T", (*seen)[1])
		}
	})
}

// A local backend answers at once: its calls have no timer.
func TestLocalCallsHaveNoTimeout(t *testing.T) {
	virtual(t, func(t *testing.T) {
		s, seen := contexts(false)
		c := client(t, s, dlock.Config{})
		unlock(t, acquire(t, c, "k"))
		unlock(t, acquire(t, c, "k", dlock.WithWait(10*time.Millisecond)))
		for i, called := range *seen {
			if at, limited := called.Deadline(); limited {
				t.Errorf("call %d is limited to %v", i, time.Until(at))
			}
		}
	})
}
