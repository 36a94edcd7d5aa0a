package dlock_test

import (
	"context"
	"testing"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
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

// Calls of a long bound share a timer, which takes up to a quarter of it. A short bound
// has no quarter to spare: it is kept exactly.
func TestShortBoundsAreNotShared(t *testing.T) {
	for _, tc := range []struct {
		name        string
		ttl         time.Duration
		first, next time.Duration // what each of two calls has
	}{
		{"short", 60 * time.Millisecond, 60 * time.Millisecond, 60 * time.Millisecond},
		{"long", 8 * second, 2 * second, 2*second - 10*time.Millisecond},
	} {
		virtual(t, func(t *testing.T) {
			s, seen := contexts(true)
			c := client(t, s, dlock.Config{DefaultTTL: tc.ttl})
			for i, want := range []time.Duration{tc.first, tc.next} {
				unlock(t, acquire(t, c, "k"))
				at, bounded := (*seen)[i].Deadline()
				if left := time.Until(at); !bounded || left != want {
					t.Errorf("call %d of a %s lease is bounded to %v, want %v", i, tc.name, left, want)
				}
				elapse(10 * time.Millisecond)
			}
		})
	}
}

// A Driver can tell whether its caller may cancel, at no cost.
func TestDriverSeesWhetherItsCallerCancels(t *testing.T) {
	virtual(t, func(t *testing.T) {
		s, seen := contexts(true)
		c := client(t, s, dlock.Config{})
		unlock(t, acquire(t, c, "k"))
		if _, ok := (*seen)[0].(driver.Uncancelled); !ok {
			t.Errorf("a context that never ends comes as a %T", (*seen)[0])
		}
		cancellable, cancel := context.WithCancel(ctx)
		defer cancel()
		g, err := c.Acquire(cancellable, "k")
		if err != nil {
			t.Fatal(err)
		}
		unlock(t, g)
		if _, ok := (*seen)[1].(*driver.Joined); !ok {
			t.Errorf("a context that may end comes as a %T", (*seen)[1])
		}
	})
}

// A local backend answers at once: its calls have no timer.
func TestLocalCallsHaveNoBound(t *testing.T) {
	virtual(t, func(t *testing.T) {
		s, seen := contexts(false)
		c := client(t, s, dlock.Config{})
		unlock(t, acquire(t, c, "k"))
		unlock(t, acquire(t, c, "k", dlock.WithWait(10*time.Millisecond)))
		for i, called := range *seen {
			if at, bounded := called.Deadline(); bounded {
				t.Errorf("call %d is bounded to %v", i, time.Until(at))
			}
		}
	})
}
