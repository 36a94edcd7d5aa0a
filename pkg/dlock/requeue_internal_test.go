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
	withFixedGrant(t, func(c *Client, cl *claim) {
		c.verifyNow(cl)
		verified := cl.verify
		taken := c.accept(cl, cl.validUntil)
		again := cl.verify
		if !verified || taken || again {
			t.Errorf("to be verified %v, taken %v, to be verified again %v", verified, taken, again)
		}
	})
}

// Neither does a suspend extend a lock that must not be renewed, before its caller takes it.
func TestSuspendDoesNotExtendAFixedGrant(t *testing.T) {
	withFixedGrant(t, func(c *Client, cl *claim) {
		was := cl.validUntil
		c.suspended = func() int64 { return int64(time.Second) }
		c.checkSuspend()
		c.suspended = nil
		if cl.renewAt != never || cl.validUntil != was-int64(time.Second) {
			t.Errorf("the next renewal is at %v, and it is valid for %v less", time.Duration(cl.renewAt), time.Duration(was-cl.validUntil))
		}
	})
}

// withFixedGrant calls f with a claim that was granted, that must not be renewed, and that its caller has not taken.
func withFixedGrant(t *testing.T, f func(*Client, *claim)) {
	synctest.Test(t, func(t *testing.T) {
		c, err := New(&Config{DefaultTTL: time.Minute}, WithBackend(memlock.New()))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		acquireFixed(t, c, "k", time.Minute)
		c.mu.Lock()
		cl := c.claims.byKey["k"]
		cl.phase = granted
		f(c, cl)
		cl.phase = held
		c.reschedule(cl)
		c.unlock()
	})
}
