package dlock

import (
	"context"
	"errors"
	"fmt"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// A keyedLock is a key that Lock or TryLock has locked, or is locking.
type keyedLock struct {
	guard    *Guard // nil while it is being acquired
	owner    *mark  // nil: re-entry is possible only with the Guard's context
	count    int    // how many Unlocks must follow
	borrowed bool   // the Guard belongs to an Acquire or a Do, which releases it
}

// Lock waits for key until ctx ends and locks it for the whole process. ctx
// limits the wait only.
//
// If this Client has already locked the key with Lock or TryLock, or is locking it, Lock
// returns ErrLockAlreadyHeld at once. Between goroutines use Acquire; for a call inside a
// call use re-entry with OwnerContext. The inner call gets what the outer one has: an option
// that asks for more, such as a longer TTL, is ErrInvalidConfig; WithWait and WithInfo have
// no effect there. After a loss, Lock returns ErrOwnershipLost until the outstanding Unlock
// has been called, so that an Unlock never releases the lock of another caller. A key that
// this Client holds with a Guard from Acquire counts as held by another caller, unless ctx
// carries that Guard.
func (c *Client) Lock(ctx context.Context, key string, opts ...LockOption) error {
	const op = "lock"
	s, err := c.check(ctx, key, opts)
	if err != nil {
		return fail(op, key, err)
	}
	return c.addHolder(ctx, fail(op, key, c.lock(ctx, key, &s)), &s)
}

// TryLock locks key if it is free, and reports whether it did. It returns (false, nil) if
// another caller holds the key, and ErrLockAlreadyHeld, as Lock does, if this Client has locked it
// with Lock or TryLock.
func (c *Client) TryLock(ctx context.Context, key string, opts ...LockOption) (bool, error) {
	const op = "try lock"
	s, err := c.check(ctx, key, opts)
	if err != nil {
		return false, fail(op, key, err)
	}
	s.wait, s.hasWait = 0, true
	err = c.lock(ctx, key, &s)
	if errors.Is(err, ErrLockHeldByOther) {
		return false, nil
	}
	return err == nil, fail(op, key, err)
}

func (c *Client) lock(ctx context.Context, key string, s *lockSettings) error {
	m := markOf(ctx) // runs the user's code, so not under mu
	started := c.now()
	h, err := c.reserveKey(m, key, s, c.guardIn(m, key))
	if err != nil {
		c.measureAcquire(ctx, started, err)
	}
	if h == nil || err != nil {
		return err
	}
	var g *Guard
	defer func() { // also if a hook of the backend's client panics
		c.mu.Lock()
		defer c.unlock()
		if g == nil {
			delete(c.keyed, key)
		}
		h.guard = g
	}()
	g, err = c.acquire(ctx, key, s)
	return err
}

// reserveKey adds key to the table of keyed locks. It returns the entry if the key must still be
// acquired. outer is a Guard of the key that the caller's context carries, or nil.
func (c *Client) reserveKey(m *mark, key string, s *lockSettings, outer *Guard) (*keyedLock, error) {
	c.mu.Lock()
	defer c.unlock()
	if c.closed {
		return nil, ErrClosed
	}
	h := c.keyed[key]
	switch {
	case h != nil:
		return nil, c.reenter(m, h, s)
	case outer == nil:
		h = &keyedLock{owner: ownerIn(m), count: 1}
		c.keyed[key] = h
		return h, nil
	case !c.cfg.EnableReentrant:
		return nil, fmt.Errorf("%w, by the Guard that the context carries", ErrLockAlreadyHeld)
	}
	if err := outer.claim.covers(s); err != nil {
		return nil, err
	}
	c.keyed[key] = &keyedLock{guard: outer, owner: ownerIn(m), count: 1, borrowed: true}
	return nil, nil
}

// reenter counts another Lock of a key that is in the table, if the owner is the same.
func (c *Client) reenter(m *mark, h *keyedLock, s *lockSettings) error {
	switch {
	case h.guard != nil && h.guard.holds() && h.guard.claim.expired(c.now()):
		c.lose(h.guard.claim, lossExpired, notRenewed)
		return h.guard.cause()
	case h.guard != nil && !h.guard.holds():
		return c.notHeldError(h.guard)
	case h.guard == nil || !c.cfg.EnableReentrant || !h.ownedBy(m):
		return fmt.Errorf("%w; use Acquire between goroutines", ErrLockAlreadyHeld)
	}
	if err := h.guard.claim.covers(s); err != nil {
		return err
	}
	h.count++
	return nil
}

// covers returns an error if an inner call asks for more than the held lock has. A lock never
// becomes a stronger one: two readers that both wait to become the writer would wait
// forever. It runs under mu.
func (cl *claim) covers(s *lockSettings) error {
	if cl.mode != driver.Exclusive && cl.mode != s.mode {
		return fmt.Errorf("%w as %s, which cannot become %s", ErrLockAlreadyHeld, cl.mode, s.mode)
	}
	var has extras
	if cl.extras != nil {
		has = *cl.extras
	}
	var more string
	switch {
	case s.hasTTL && s.ttl > cl.ttl:
		more = fmt.Sprintf("WithTTL %v inside a lock with %v; use Extend", s.ttl, cl.ttl)
	case s.margin > cl.marginOf(cl.ttl):
		more = fmt.Sprintf("WithMargin %v inside a lock with %v", s.margin, cl.marginOf(cl.ttl))
	case s.noRenew && !cl.noRenew:
		more = "WithoutRenewal inside a lock that is renewed"
	case s.ownLease && !cl.ownLease:
		more = "WithOwnLease inside a lock without"
	case s.minHold > has.minHold:
		more = fmt.Sprintf("WithMinHold %v inside a lock with %v", s.minHold, has.minHold)
	case s.maxHold > 0 && (has.maxHold == 0 || has.maxHold > s.maxHold):
		more = fmt.Sprintf("WithMaxHold %v inside a lock that may be held for longer", s.maxHold)
	case s.mode == driver.Permit && cl.mode == driver.Permit && s.limit != int(cl.limit):
		more = fmt.Sprintf("WithPermits %d inside a lock with %d", s.limit, cl.limit)
	default:
		return nil
	}
	return fmt.Errorf("%w: %s", ErrInvalidConfig, more)
}

// Unlock releases a key that Lock or TryLock has locked. After re-entry, every Lock needs its own
// Unlock, and the last one releases the key. It returns the same errors as Guard.Unlock, and
// ErrLockNotHeld if the key is not locked.
func (c *Client) Unlock(ctx context.Context, key string) error {
	const op = "unlock"
	if ctx == nil {
		return fail(op, key, fmt.Errorf("%w: context is nil", ErrInvalidConfig))
	}
	g, err := c.lastUnlock(key)
	if g == nil || err != nil {
		return fail(op, key, err)
	}
	return fail(op, key, c.release(ctx, g))
}

// lastUnlock counts an Unlock. It returns the Guard if the lock must be released now.
func (c *Client) lastUnlock(key string) (*Guard, error) {
	c.mu.Lock()
	defer c.unlock()
	h := c.keyed[key]
	switch {
	case h == nil && c.closed:
		return nil, ErrClosed
	case h == nil, h.guard == nil:
		return nil, ErrLockNotHeld
	}
	h.count--
	if h.count == 0 {
		delete(c.keyed, key)
		if !h.borrowed {
			return h.guard, nil
		}
	}
	if !h.guard.holds() {
		return nil, c.notHeldError(h.guard)
	}
	return nil, nil
}

// Held returns the Guard of a key that Lock or TryLock has locked, for its context, its token
// and its remaining time.
func (c *Client) Held(key string) (*Guard, bool) {
	c.mu.Lock()
	defer c.unlock()
	h := c.keyed[key]
	if h == nil || h.guard == nil || !h.guard.holds() {
		return nil, false
	}
	return h.guard, true
}
