package dlock

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock/memlock"
)

// A grant of a lock that must not be renewed is to be verified, and cannot be delivered in time. The claim waits again, so its
// renewal is one for the whole lease: one that only verifies would leave it the rest.
func TestWaitingAgainIsNotVerified(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, err := New(&Config{DefaultTTL: time.Minute}, WithBackend(memlock.New()))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		acquireFixed(t, c, "k", time.Minute)
		c.mu.Lock()
		cl := c.claims.byKey["k"]
		cl.phase = granted // as before its caller takes it
		c.verifyNow(cl)
		verified := cl.verify
		taken := c.accept(cl, cl.validUntil)
		again := cl.verify
		c.reschedule(cl)
		c.unlock()
		if !verified || taken || again {
			t.Errorf("to be verified %v, taken %v, to be verified again %v", verified, taken, again)
		}
	})
}
