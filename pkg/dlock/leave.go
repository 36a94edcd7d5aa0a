package dlock

import (
	"fmt"
	"time"

	"github.com/ceyewan/genesis/pkg/clog"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// Leave ends ownership without releasing the lock: the key stays locked until its lease ends, also if the
// Client is closed or the process ends. It makes no call to the backend. The Guard's context ends, as after
// Unlock, and a later Unlock returns ErrLockNotHeld. Package once keeps a job from running twice in this way.
//
// The lock must be acquired WithoutRenewal, on a backend with leases; otherwise the error is ErrUnsupported, and
// nothing changes. ErrOwnershipLost means that the lock ended before Leave; whatever the backend still stores
// of it is left to its lease. A key that Lock has locked needs no Unlock afterwards.
//
// How long the key stays locked is what the backend has confirmed last. A lock that was waited for has only the
// rest of a waiter's lease, three seconds at most, until Extend has returned. An Extend in progress returns
// ErrLockNotHeld and may still take effect.
func (g *Guard) Leave() error {
	const op = "leave"
	if !g.usable() {
		return fail(op, "", fmt.Errorf("%w: zero or copied Guard", ErrLockNotHeld))
	}
	c := g.claim.client
	left, err := c.leave(g)
	if err == nil {
		c.logLeft(g, left)
	}
	c.reporter.deliver()
	return fail(op, g.claim.key, err)
}

// leave ends a Guard and forgets its claim. It returns how long the lease lasts.
func (c *Client) leave(g *Guard) (time.Duration, error) {
	cl := g.claim
	c.mu.Lock()
	defer c.unlockCall()
	now := c.now()
	if g.holds() && cl.expired(now) {
		c.lose(cl, lossUnlocked, "it was left after its lease")
	}
	holds := g.holds()
	switch {
	case !holds:
	case !c.caps.Lease:
		return 0, fmt.Errorf("%w: %s has no leases, so the key would stay locked; use Unlock", ErrUnsupported, c.caps.Name)
	case !cl.noRenew:
		return 0, fmt.Errorf("%w: the lock is renewed, so its lease may be shared; acquire it WithoutRenewal", ErrUnsupported)
	}
	if h := c.keyed[cl.key]; h != nil && h.guard == g {
		delete(c.keyed, cl.key)
	}
	if !holds {
		return 0, c.leaveLost(g)
	}
	left := cl.remaining(now) + cl.marginOf(cl.lease)
	c.finish(cl, nil)
	c.measure(measurement{of: measuredHold, value: time.Duration(now - g.since), label: resultLeft})
	if cl.hasWaited || cl.unanswered { // the push of its grant may come late
		c.ignored.add(cl.id, after(now, left), now)
	}
	if leaver, ok := c.store.(driver.Leaver); ok {
		leaver.Leave(cl.ref())
	}
	return left, nil
}

// leaveLost returns why a Guard does not hold its lock. Unlike unlockError, it does not release a lost lock: in the
// margin, the lease has not ended.
func (c *Client) leaveLost(g *Guard) error {
	cause := g.cause()
	if cause == nil {
		return ErrLockNotHeld
	}
	c.endContexts(g.claim)
	if t := c.lost[g]; t != nil {
		t.Stop()
		delete(c.lost, g)
		g.own.released = true
	}
	return cause
}

func (c *Client) logLeft(g *Guard, left time.Duration) {
	if c.warnsOnly {
		return
	}
	safely(func() {
		c.logLock("lock left", g, clog.Duration("hold", time.Duration(c.now()-g.since)), clog.Duration("lease", left))
	})
}
