package dlock

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// abandonedClaims are the claims on a remote backend that their callers have given up, and whose
// first release is not answered yet. A later call of this Client that does not queue waits for
// them. Otherwise a waiter of the same Client that has already left could make it fail.
type abandonedClaims struct {
	count atomic.Int32 // of keys, so that most calls need not lock mu

	// Under client.mu.
	byKey map[string]*abandonedKey
}

// An abandonedKey counts the claims on one key that were given up, and how many of their
// releases were tried. A call waits for the claims that were given up before it began, not
// for later ones.
type abandonedKey struct {
	abandoned, tried int
	changed          chan struct{} // closed when a release was tried; nil unless a call waits
}

// abandonedTimeout is how long a call waits for abandoned claims.
const abandonedTimeout = 200 * time.Millisecond

// begin runs under mu.
func (d *abandonedClaims) begin(key string) {
	if d.byKey == nil {
		d.byKey = map[string]*abandonedKey{}
	}
	if d.byKey[key] == nil {
		d.byKey[key] = &abandonedKey{}
		d.count.Add(1)
	}
	d.byKey[key].abandoned++
}

// end runs under mu.
func (d *abandonedClaims) end(key string) {
	k := d.byKey[key]
	k.tried++
	if k.changed != nil {
		close(k.changed)
		k.changed = nil
	}
	if k.tried == k.abandoned {
		delete(d.byKey, key)
		d.count.Add(-1)
	}
}

// awaitReleases waits for releases of this Client that a call must not overtake. A call that waits for
// the key usually gets it after them anyway.
func (c *Client) awaitReleases(ctx context.Context, key string, s *lockSettings) error {
	if s.waits() && (!s.asyncUnlock || c.late != nil) {
		return nil
	}
	return c.awaitAbandoned(ctx, key, s.wait)
}

// awaitAbandoned waits for the claims on key that were given up before. It uses at most a
// quarter of the time until the caller's deadline, and of longest, if that is not 0.
func (c *Client) awaitAbandoned(ctx context.Context, key string, longest time.Duration) error {
	if c.abandoned.count.Load() == 0 {
		return nil
	}
	c.mu.Lock()
	k, target := c.abandoned.byKey[key], 0
	if k != nil {
		target = k.abandoned
	}
	c.mu.Unlock()
	if k == nil {
		return nil
	}
	if c.late != nil {
		c.late.SendReleases()
	}
	timeout := abandonedTimeout
	if at, ok := ctx.Deadline(); ok {
		timeout = min(timeout, time.Until(at)/4)
	}
	if longest > 0 {
		timeout = min(timeout, longest/4)
	}
	t := time.NewTimer(timeout)
	defer t.Stop()
	for {
		c.mu.Lock()
		done := k.tried >= target
		if k.changed == nil {
			k.changed = make(chan struct{})
		}
		changed := k.changed
		c.mu.Unlock()
		if done {
			return nil
		}
		select {
		case <-changed:
		case <-t.C:
			return nil
		case <-ctx.Done():
			return ctxError(ctx)
		case <-c.closing.Done():
			return ErrClosed
		}
	}
}

// abandonedTried records that the release of a claim was tried, with any result. It runs under mu.
func (c *Client) abandonedTried(s *cleanupTask) {
	if s.abandoned {
		s.abandoned = false
		c.abandoned.end(s.ref.Key)
	}
}

// cleanUpAbandoned hands a claim that was given up to cleanup. It runs under mu.
func (c *Client) cleanUpAbandoned(r driver.Ref) {
	c.cleanUpRef(r)
	c.cleanups[len(c.cleanups)-1].abandoned = true
	c.abandoned.begin(r.Key)
}
