package dlock

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// findTimeout limits how long a call that did not get a lock looks up the holder, which is
// only for the error text. lateFindTimeout is the same for a call that has used up its
// WithWait.
const (
	findTimeout     = 250 * time.Millisecond
	lateFindTimeout = 50 * time.Millisecond
)

// Holder returns a claim that holds key, or false if none does. It is a hint: the holder may have changed
// before the answer arrives. If the backend cannot tell, the error is ErrUnsupported.
func (c *Client) Holder(ctx context.Context, key string) (holder Claim, held bool, err error) {
	const op = "holder"
	if ctx == nil {
		return Claim{}, false, fail(op, key, fmt.Errorf("%w: context is nil", ErrInvalidConfig))
	}
	if err := checkKey(key); err != nil {
		return Claim{}, false, fail(op, key, err)
	}
	if err := c.beginCall(); err != nil {
		return Claim{}, false, fail(op, key, err)
	}
	defer c.endCall()
	cctx, cancel := c.untilClose(ctx)
	defer cancel()
	found, _, err := c.findHolder(cctx, key, "")
	if err != nil {
		return Claim{}, false, fail(op, key, c.callError(ctx, err))
	}
	if found.Phase != driver.Held {
		return Claim{}, false, nil
	}
	return claimOf(&found), true, nil
}

// addHolder adds the holder to an ErrLockHeldByOther, if the backend returns it in time.
func (c *Client) addHolder(ctx context.Context, err error, s *lockSettings) error {
	var e *Error
	if !errors.Is(err, ErrLockHeldByOther) || !errors.As(err, &e) || c.beginCall() != nil {
		return err
	}
	defer c.endCall()
	timeout := findTimeout
	if s.wait > 0 {
		timeout = lateFindTimeout
	}
	cctx, cancel := c.ownContext(ctx, timeout)
	defer cancel()
	holder, waiting, failed := c.findHolder(cctx, e.Key, s.submitted)
	if failed == nil && holder.Phase == driver.Held {
		shown := claimOf(&holder)
		e.Holder, e.Waiters, e.permits = &shown, waiting, s.limit
		if c.Backend() == BackendFile { // whose waiters only their own processes know
			e.Waiters = -1
		}
	}
	return err
}

// findHolderLater looks up the holder in the background: for a traced waiter, to link to the
// holder's span, and for a waiter for a permit, to log a limit that differs.
func (c *Client) findHolderLater(ctx context.Context, key string, s *lockSettings) {
	traced := c.tracer != nil && s.info.Trace != ""
	if !traced && (s.mode != driver.Permit || c.quiet) {
		return
	}
	if !traced && !c.shouldFindHolder(permitKey{key, s.limit}) {
		return
	}
	span, submitted, limit := trace.SpanFromContext(ctx), s.submitted, s.limit
	c.workers.Go(func() {
		cctx, cancel := c.callContext(context.WithoutCancel(ctx), linkTimeout)
		defer cancel()
		var failed error
		defer recoverHook(&failed) // it was for the logs and traces only
		holder, _, _ := c.findHolder(cctx, key, submitted)
		if traced {
			c.linkHolder(span, holder)
		}
		if limit > 0 && holder.Limit > 0 && holder.Limit != limit {
			c.logPermitsDiffer(key, limit, holder.Limit)
		}
	})
}

// A permitKey identifies waiters for permits that need only one lookup.
type permitKey struct {
	key   string
	limit int
}

// shouldFindHolder reports whether no waiter for the same permits has looked up the holder within
// the last second: one lookup for all of them shows that the limits differ.
func (c *Client) shouldFindHolder(k permitKey) bool {
	const every, most = int64(time.Second), 1024
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.now()
	if at, ok := c.foundHolderAt[k]; ok && now-at < every {
		return false
	}
	if c.foundHolderAt == nil || len(c.foundHolderAt) >= most {
		c.foundHolderAt = map[permitKey]int64{}
	}
	c.foundHolderAt[k] = now
	return true
}

// findHolder returns the holder of a key and the number of waiters, without the caller's own claim,
// which is being released.
func (c *Client) findHolder(ctx context.Context, key, own string) (holder driver.Claim, waiting int, err error) {
	if finder, ok := c.store.(driver.HolderFinder); ok {
		return finder.Look(ctx, key, own)
	}
	admin, found := c.store.(driver.Admin)
	if !found {
		return driver.Claim{}, 0, ErrUnsupported
	}
	claims, err := admin.Inspect(ctx, key)
	for i := range claims {
		switch {
		case claims[i].ID == own:
		case claims[i].Phase == driver.Queued:
			waiting++
		case holder.Phase != driver.Held:
			holder = claims[i]
		}
	}
	return holder, waiting, err
}
