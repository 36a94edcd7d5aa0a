package dlock

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock/memlock"
)

// A minimum hold has ended, and Close runs before the scheduler, as it may after the process was
// stopped: the lock is released, and not left to its lease.
func TestCloseReleasesWhatIsNotHeldAnyMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memlock.New()
		c, err := New(&Config{DefaultTTL: time.Minute}, WithBackend(store))
		if err != nil {
			t.Fatal(err)
		}
		g, err := c.Acquire(t.Context(), "k", WithMinHold(10*time.Second))
		if err != nil {
			t.Fatal(err)
		}
		if err := g.Unlock(t.Context()); err != nil {
			t.Fatal(err)
		}
		c.mu.Lock()
		g.since = c.now() - int64(20*time.Second) // the time has passed, and the scheduler has not run
		c.mu.Unlock()
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
		other, err := New(&Config{}, WithBackend(store))
		if err != nil {
			t.Fatal(err)
		}
		defer other.Close()
		if ok, err := other.TryLock(t.Context(), "k"); !ok || err != nil {
			t.Errorf("the lock is not free: %v, %v", ok, err)
		}
	})
}
