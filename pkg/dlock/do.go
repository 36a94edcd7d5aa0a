package dlock

import (
	"context"
	"errors"
	"fmt"
)

// Do runs fn while it holds key. The context of fn is a child of ctx that also ends when the
// lock is lost; fn must stop when it ends. Do releases the lock after fn has returned or
// panicked.
//
// Do returns the error of fn. If the lock was lost meanwhile, the error is joined with
// ErrOwnershipLost, even if fn returned nil. If the backend did not confirm the release, Do
// returns no error for that, because the work was done: it logs the failure, and cleanup continues
// in the background. With Config.EnableReentrant, a Do inside a Do of the same key runs fn at once
// under the outer lock.
func (c *Client) Do(ctx context.Context, key string, fn func(context.Context) error, opts ...LockOption) error {
	const op = "do"
	if fn == nil {
		return fail(op, key, fmt.Errorf("%w: function is nil", ErrInvalidConfig))
	}
	s, err := c.check(ctx, key, opts)
	if err != nil {
		return fail(op, key, err)
	}
	if outer := c.guardFor(ctx, key); outer != nil {
		return c.doInside(ctx, outer, &s, fn)
	}
	g, err := c.acquire(ctx, key, &s)
	if err != nil {
		return c.addHolder(ctx, fail(op, key, err), &s)
	}
	return g.run(ctx, fn)
}

// doInside runs fn under a lock that the caller already has, if re-entry is enabled.
func (c *Client) doInside(ctx context.Context, outer *Guard, s *lockSettings, fn func(context.Context) error) error {
	if !c.cfg.EnableReentrant {
		return fail("do", outer.Key(), fmt.Errorf("%w, by the Guard or the owner that the context carries", ErrLockAlreadyHeld))
	}
	c.mu.Lock()
	err := outer.claim.covers(s)
	c.unlock()
	if err != nil {
		return fail("do", outer.Key(), err)
	}
	inner, cancel := outer.WithContext(ctx)
	defer cancel()
	err = fn(inner)
	if lost := outer.Err(); errors.Is(lost, ErrOwnershipLost) {
		return errors.Join(err, fail("do", outer.Key(), lost))
	}
	return err
}

// run runs fn and releases the lock, even if fn panics. It does not recover.
func (g *Guard) run(ctx context.Context, fn func(context.Context) error) (err error) {
	var inner context.Context
	cancel := func() {}
	defer func() {
		cancel()
		switch uerr := g.Unlock(ctx); {
		case errors.Is(uerr, ErrUnknownOutcome):
			g.claim.client.logUnconfirmed(g, uerr)
		case uerr != nil:
			err = errors.Join(err, uerr)
		}
	}()
	inner, cancel = g.WithContext(ctx) // calls methods of ctx, which may panic
	return fn(inner)
}
