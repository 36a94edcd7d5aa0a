package dlock

import (
	"context"
	"fmt"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// Types of the seam that users meet.
type (
	// Info tells people who holds a key or waits for it.
	Info = driver.Info
	// A Claim is a holder or a waiter, as Admin.Inspect shows it.
	Claim = driver.Claim
	// A Finding is Check's judgement of one setting.
	Finding = driver.Finding
)

// Check asks the backend whether its settings are safe for locks. A backend that
// cannot tell is ErrUnsupported.
func (c *Client) Check(ctx context.Context) ([]Finding, error) {
	const op = "check"
	if ctx == nil {
		return nil, fail(op, "", fmt.Errorf("%w: context is nil", ErrInvalidConfig))
	}
	checker, ok := c.store.(driver.Checker)
	if !ok {
		return nil, fail(op, "", ErrUnsupported)
	}
	if err := c.enter(); err != nil {
		return nil, fail(op, "", err)
	}
	defer c.leave()
	cctx, cancel := c.untilClose(ctx)
	defer cancel()
	findings, err := checker.Check(cctx)
	return findings, fail(op, "", c.ownError(ctx, err))
}

// An Admin looks at everybody's claims and can take a lock away.
type Admin struct {
	client *Client
	store  driver.Admin
}

// Admin returns the Admin of a Client that was made with WithAdmin.
func (c *Client) Admin() (*Admin, error) {
	const op = "admin"
	if !c.admin {
		return nil, fail(op, "", fmt.Errorf("%w: make the Client with WithAdmin", ErrUnsupported))
	}
	store, ok := c.store.(driver.Admin)
	if !ok {
		return nil, fail(op, "", ErrUnsupported)
	}
	return &Admin{c, store}, nil
}

// List returns up to limit keys that start with prefix and are locked, from
// where cursor left off: "" at the start, and next is "" at the end.
func (a *Admin) List(ctx context.Context, prefix, cursor string, limit int) (keys []string, next string, err error) {
	const op = "list"
	if limit < 1 {
		return nil, "", fail(op, prefix, fmt.Errorf("%w: limit %d is below 1", ErrInvalidConfig, limit))
	}
	if err := a.enter(ctx); err != nil {
		return nil, "", fail(op, prefix, err)
	}
	defer a.client.leave()
	cctx, cancel := a.client.untilClose(ctx)
	defer cancel()
	keys, next, err = a.store.List(cctx, prefix, cursor, limit)
	return keys, next, fail(op, prefix, a.client.ownError(ctx, err))
}

// Inspect returns the claims on key: the holders, then the queue in the order
// in which it will be granted.
func (a *Admin) Inspect(ctx context.Context, key string) ([]Claim, error) {
	const op = "inspect"
	claims, err := a.inspect(ctx, key)
	for i := range claims {
		claims[i].ID = "" // the right to release stays with its owner
	}
	return claims, fail(op, key, err)
}

func (a *Admin) inspect(ctx context.Context, key string) ([]Claim, error) {
	if err := checkKey(key); err != nil {
		return nil, err
	}
	if err := a.enter(ctx); err != nil {
		return nil, err
	}
	defer a.client.leave()
	cctx, cancel := a.client.untilClose(ctx)
	defer cancel()
	claims, err := a.store.Inspect(cctx, key)
	return claims, a.client.ownError(ctx, err)
}

// Evict takes the lock from the holder that has this token, and gives it to the
// next. With Config.LocalBatch it is any of the tokens of the holder's turn. The token is
// the proof that the caller has seen whom it evicts: if the
// lock has passed on meanwhile the error is ErrLockNotHeld and nothing is
// changed. The evicted holder learns of it at its next renewal at the latest;
// what it writes until then only its smaller token can stop. Evictions are
// logged.
func (a *Admin) Evict(ctx context.Context, key string, token int64) error {
	const op = "evict"
	victim, err := a.evict(ctx, key, token)
	if err != nil {
		return fail(op, key, err)
	}
	a.client.logEvicted(key, victim)
	return nil
}

func (a *Admin) evict(ctx context.Context, key string, token int64) (victim Claim, err error) {
	claims, err := a.inspect(ctx, key)
	if err != nil {
		return victim, err
	}
	if err := a.enter(ctx); err != nil {
		return victim, err
	}
	defer a.client.leave()
	cctx, cancel := a.client.untilClose(ctx)
	defer cancel()
	for _, cl := range claims {
		if cl.Phase != driver.Held || token < cl.Token || token > max(cl.Token, cl.LastToken) {
			continue
		}
		st, err := a.store.Evict(cctx, key, cl.ID, cl.Token)
		if err != nil {
			return victim, a.client.ownError(ctx, err)
		}
		if st.Phase == driver.Held {
			return cl, nil
		}
	}
	return victim, fmt.Errorf("%w with token %d", ErrLockNotHeld, token)
}

func (a *Admin) enter(ctx context.Context) error {
	if ctx == nil {
		return fmt.Errorf("%w: context is nil", ErrInvalidConfig)
	}
	return a.client.enter()
}
