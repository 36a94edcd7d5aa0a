package dlock

import (
	"context"
	"fmt"
	"iter"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// Check asks the backend whether its settings are safe for locks. It returns
// ErrUnsupported if the backend cannot tell.
func (c *Client) Check(ctx context.Context) ([]Finding, error) {
	const op = "check"
	if ctx == nil {
		return nil, fail(op, "", fmt.Errorf("%w: context is nil", ErrInvalidConfig))
	}
	checker, ok := c.store.(driver.Checker)
	if !ok {
		return nil, fail(op, "", ErrUnsupported)
	}
	if err := c.beginCall(); err != nil {
		return nil, fail(op, "", err)
	}
	defer c.endCall()
	cctx, cancel := c.untilClose(ctx)
	defer cancel()
	findings, err := checker.Check(cctx)
	return findingsOf(findings), fail(op, "", c.callError(ctx, err))
}

// An Admin shows the claims of all clients and can evict holders.
type Admin struct {
	client *Client
	store  driver.Admin
}

// Admin returns the Admin of a Client that was created with WithAdmin.
func (c *Client) Admin() (*Admin, error) {
	const op = "admin"
	if !c.admin {
		return nil, fail(op, "", fmt.Errorf("%w: create the Client with WithAdmin", ErrUnsupported))
	}
	store, ok := c.store.(driver.Admin)
	if !ok {
		return nil, fail(op, "", ErrUnsupported)
	}
	return &Admin{c, store}, nil
}

// List returns the locked keys that start with prefix, in no particular order. It may omit a key
// that is locked or unlocked meanwhile, and may return a key twice. It stops after an error.
//
//	for key, err := range admin.List(ctx, "order:") {
//		if err != nil {
//			return err
//		}
//		fmt.Println(key)
//	}
func (a *Admin) List(ctx context.Context, prefix string) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		for cursor := ""; ; {
			keys, next, err := a.ListPage(ctx, prefix, cursor, pageSize)
			if err != nil {
				yield("", err)
				return
			}
			for _, key := range keys {
				if !yield(key, nil) {
					return
				}
			}
			if next == "" {
				return
			}
			cursor = next
		}
	}
}

// pageSize is the limit of each page that List requests.
const pageSize = 1000

// ListPage returns one page of List with about limit keys. cursor is "" for the first page, and
// the previous next for each further page. next is "" after the last page. Any other cursor is
// ErrInvalidConfig.
func (a *Admin) ListPage(ctx context.Context, prefix, cursor string, limit int) (keys []string, next string, err error) {
	const op = "list"
	if limit < 1 {
		return nil, "", fail(op, prefix, fmt.Errorf("%w: limit %d is below 1", ErrInvalidConfig, limit))
	}
	if err := a.beginCall(ctx); err != nil {
		return nil, "", fail(op, prefix, err)
	}
	defer a.client.endCall()
	cctx, cancel := a.client.untilClose(ctx)
	defer cancel()
	keys, next, err = a.store.List(cctx, prefix, cursor, limit)
	return keys, next, fail(op, prefix, a.client.callError(ctx, err))
}

// Inspect returns the claims on key: the holders, then the queue in the order
// in which it will be granted.
func (a *Admin) Inspect(ctx context.Context, key string) ([]Claim, error) {
	stored, err := a.inspect(ctx, key)
	var claims []Claim
	for i := range stored {
		claims = append(claims, claimOf(&stored[i]))
	}
	return claims, fail("inspect", key, err)
}

// Waiters returns the queue of key, in the order in which it will be granted.
func (a *Admin) Waiters(ctx context.Context, key string) iter.Seq2[Claim, error] {
	return func(yield func(Claim, error) bool) {
		stored, err := a.inspect(ctx, key)
		if err != nil {
			yield(Claim{}, fail("inspect", key, err))
			return
		}
		for i := range stored {
			if stored[i].Phase == driver.Queued && !yield(claimOf(&stored[i]), nil) {
				return
			}
		}
	}
}

func (a *Admin) inspect(ctx context.Context, key string) ([]driver.Claim, error) {
	if err := checkKey(key); err != nil {
		return nil, err
	}
	if err := a.beginCall(ctx); err != nil {
		return nil, err
	}
	defer a.client.endCall()
	cctx, cancel := a.client.untilClose(ctx)
	defer cancel()
	claims, err := a.store.Inspect(cctx, key)
	return claims, a.client.callError(ctx, err)
}

// Evict takes the lock from the holder that has this token, and grants it to the next
// waiter. With Config.LocalBatch, token may be any token that the holder's process
// reserved. The token proves that the caller knows which holder it evicts: if another
// claim holds the lock by then, Evict changes nothing and returns ErrLockNotHeld. The
// evicted holder notices at its next renewal at the latest. Until then, only fencing by
// its smaller token can stop its writes. Evictions are logged.
func (a *Admin) Evict(ctx context.Context, key string, token int64) error {
	const op = "evict"
	victim, err := a.evict(ctx, key, token)
	if err != nil {
		return fail(op, key, err)
	}
	a.client.logEvicted(key, victim)
	return nil
}

func (a *Admin) evict(ctx context.Context, key string, token int64) (victim driver.Claim, err error) {
	claims, err := a.inspect(ctx, key)
	if err != nil {
		return victim, err
	}
	if err := a.beginCall(ctx); err != nil {
		return victim, err
	}
	defer a.client.endCall()
	cctx, cancel := a.client.untilClose(ctx)
	defer cancel()
	for _, cl := range claims {
		if cl.Phase != driver.Held || token < cl.Token || token > max(cl.Token, cl.LastToken) {
			continue
		}
		st, err := a.store.Evict(cctx, key, cl.ID, cl.Token)
		if err != nil {
			return victim, a.client.callError(ctx, err)
		}
		if st.Phase == driver.Held {
			return cl, nil
		}
	}
	return victim, fmt.Errorf("%w with token %d", ErrLockNotHeld, token)
}

func (a *Admin) beginCall(ctx context.Context) error {
	if ctx == nil {
		return fmt.Errorf("%w: context is nil", ErrInvalidConfig)
	}
	return a.client.beginCall()
}
