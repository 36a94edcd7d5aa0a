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

// On half-open links a renewal returns when its context ends, and because of that, although nodes
// have five seconds to answer. The engine renews in the background, so the test calls the driver
// directly; TestCallsReturnWithTheirContext covers all other calls. The limit is 100 ms; without
// stress it is less than the node timeout.
func TestRenewReturnsWithItsContext(t *testing.T) {
	s := start(t, 3)
	d := s.open(t, patient)
	submit(t, d, driver.Request{Ref: claim(1)}, driver.Held)
	for _, p := range s.proxies {
		p.BlackHole(true)
	}
	beat := testenv.StartMetronome(t)
	const timeout = 50 * time.Millisecond
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	begun := time.Now()
	_, err := d.Renew(ctx, []driver.Ref{claim(1)})
	over := time.Since(begun) - timeout - beat.Lost(begun)
	if !errors.Is(err, context.DeadlineExceeded) || over > testenv.UnderStress(ample-time.Second, 100*time.Millisecond) {
		t.Errorf("%v, %v after its context", err, over.Round(time.Millisecond))
	}
	s.heal()
}

// No call waits for a dead node: a pair takes less than an attempt of two seconds that waits for
// its answer. Each pair uses a Client that does not know yet that the node is dead.
func TestDeadNodeIsNotWaitedFor(t *testing.T) {
	s := start(t, 5)
	best := time.Hour
	for range 5 {
		c := s.locks(t, dlock.Config{DefaultTTL: 30 * time.Second})
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
