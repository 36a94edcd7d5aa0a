package dlock

import (
	"context"
	"errors"
	"fmt"
)

// Do runs fn while it holds key. The context of fn is a child of ctx that also
// ends when the lock is lost; fn must stop when it ends, and the lock is
// released when fn has returned or panicked.
//
// The error is fn's. If the lock was lost meanwhile it is joined with
// ErrOwnershipLost, even if fn did not mind. A release that the backend did not
// confirm is no error of the work that was done: it is logged, and cleaned up in
// the background. With Config.EnableReentrant, a Do inside a Do of the same key
// runs fn at once under the outer lock.
func (c *Client) Do(ctx context.Context, key string, fn func(context.Context) error, opts ...LockOption) error {
	const op = "do"
	if fn == nil {
		return fail(op, key, fmt.Errorf("%w: function is nil", ErrInvalidConfig))
	}
	s, err := c.check(ctx, key, opts)
	if err != nil {
		return fail(op, key, err)
	}
	if outer := c.holding(ctx, key); outer != nil {
		return c.doInside(ctx, outer, &s, fn)
	}
	g, err := c.acquire(ctx, key, &s)
	if err != nil {
		return c.busy(ctx, fail(op, key, err), &s)
	}
	return g.run(ctx, fn)
}

// doInside runs fn under a lock that the caller has already, if that may be.
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
	return fn(inner)
}

// run releases in any case, also when fn panics, and then lets the panic pass.
func (g *Guard) run(ctx context.Context, fn func(context.Context) error) (err error) {
	inner, cancel := g.WithContext(ctx)
	defer func() {
		cancel()
		switch uerr := g.Unlock(ctx); {
		case errors.Is(uerr, ErrUnknownOutcome):
			g.claim.client.logUnconfirmed(g, uerr)
		case uerr != nil:
			err = errors.Join(err, uerr)
		}
	}()
	return fn(inner)
}
