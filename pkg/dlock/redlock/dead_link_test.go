package redlock_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// A ctxCall is one that must end with its context.
type ctxCall struct {
	name string
	call func(context.Context) error
}

// A6: on half-open links every call returns when its context ends, and because it does,
// though nodes have five seconds to answer. The mark is 100 ms; without stress it is less
// than what nodes have.
func TestA6ContextsCount(t *testing.T) {
	s := start(t, 3)
	c := s.locks(t, dlock.Config{DefaultTTL: time.Minute}, patient)
	warm(t, c)
	held, extended := acquire(t, c, "held"), acquire(t, c, "extended")
	check(t, c.Lock(t.Context(), "keyed"))
	admin, err := c.Admin()
	check(t, err)
	d := s.open(t, patient) // the engine renews in the background, so the driver is asked itself
	file(t, d, driver.Request{Ref: claim(1)}, driver.Held)
	for _, p := range s.proxies {
		p.BlackHole(true)
	}
	beat := testenv.StartMetronome(t)
	most := testenv.UnderStress(ample-time.Second, 100*time.Millisecond)
	const bound = 50 * time.Millisecond
	for _, e := range []ctxCall{
		{"Lock", func(ctx context.Context) error { return c.Lock(ctx, "a") }},
		{"TryLock", func(ctx context.Context) error { _, err := c.TryLock(ctx, "b"); return err }},
		{"Acquire", func(ctx context.Context) error { _, err := c.Acquire(ctx, "c"); return err }},
		{"Do", func(ctx context.Context) error { return c.Do(ctx, "d", func(context.Context) error { return nil }) }},
		{"Extend", func(ctx context.Context) error { return extended.Extend(ctx, 2*time.Minute) }},
		{"Guard.Unlock", held.Unlock},
		{"Unlock", func(ctx context.Context) error { return c.Unlock(ctx, "keyed") }},
		{"Check", func(ctx context.Context) error { _, err := c.Check(ctx); return err }},
		{"Inspect", func(ctx context.Context) error { _, err := admin.Inspect(ctx, "held"); return err }},
		{"List", func(ctx context.Context) error { _, _, err := admin.List(ctx, "", "", 10); return err }},
		{"Driver.Renew", func(ctx context.Context) error { _, err := d.Renew(ctx, []driver.Ref{claim(1)}); return err }},
		{"Evict", func(ctx context.Context) error { return admin.Evict(ctx, "held", held.Token()) }},
	} {
		ctx, cancel := context.WithTimeout(context.Background(), bound)
		begun := time.Now()
		err := e.call(ctx)
		over := time.Since(begun) - bound - beat.Lost(begun)
		cancel()
		if !errors.Is(err, context.DeadlineExceeded) || over > most {
			t.Errorf("%s: %v, %v after its context", e.name, err, over.Round(time.Millisecond))
		}
	}
	s.heal()
}

// Nobody waits for a node that is dead: a pair takes less than an attempt, of two seconds,
// that waits for its answer. Each is by a Client that does not know yet that the node is.
func TestDeadNodeIsNotWaitedFor(t *testing.T) {
	s := start(t, 5)
	best := time.Hour
	for range 5 {
		c := s.locks(t, dlock.Config{DefaultTTL: 30 * time.Second}, patient)
		warm(t, c)
		s.proxies[2].BlackHole(true)
		begun := time.Now()
		unlock(t, acquire(t, c, "k"))
		best = min(best, time.Since(begun))
		s.heal()
	}
	if best > testenv.UnderStress(1500*time.Millisecond, 400*time.Millisecond) {
		t.Errorf("the best of 5 pairs took %v", best)
	}
}
