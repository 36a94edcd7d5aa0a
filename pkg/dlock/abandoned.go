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
	return c.awaitAbandoned(ctx, s.wait, key)
}

// awaitAbandoned waits for the claims on keys that were given up before, for all of them together. It uses at most a
// quarter of the time until the caller's deadline, and of longest, if that is not 0.
func (c *Client) awaitAbandoned(ctx context.Context, longest time.Duration, keys ...string) error {
	if c.abandoned.count.Load() == 0 {
		return nil
	}
	var waits []abandonedWait
	c.mu.Lock()
	for _, key := range keys {
		if k := c.abandoned.byKey[key]; k != nil {
			waits = append(waits, abandonedWait{k, k.abandoned})
		}
	}
	c.mu.Unlock()
	if len(waits) == 0 {
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
		changed := c.nextChange(waits)
		if changed == nil {
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

// An abandonedWait waits until so many releases of claims on a key were tried.
type abandonedWait struct {
	key    *abandonedKey
	target int
}

// nextChange returns a channel that is closed when another release of one of the keys was tried. It is nil if none is
// waited for any more.
func (c *Client) nextChange(waits []abandonedWait) <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, w := range waits {
		if w.key.tried >= w.target {
			continue
		}
		if w.key.changed == nil {
			w.key.changed = make(chan struct{})
		}
		return w.key.changed
	}
	return nil
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
