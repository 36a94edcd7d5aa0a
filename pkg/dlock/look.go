package dlock

import (
	"context"
	"errors"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// lookTimeout limits how long a call that did not get a lock looks up the holder, which is
// only for the error text. lateLookTimeout is the same for a call that has used up its
// WithWait.
const (
	lookTimeout     = 250 * time.Millisecond
	lateLookTimeout = 50 * time.Millisecond
)

// busy adds the holder to an ErrLockHeldByOther, if the backend can tell soon enough.
func (c *Client) busy(ctx context.Context, err error, s *lockSettings) error {
	var e *Error
	if !errors.Is(err, ErrLockHeldByOther) || !errors.As(err, &e) || c.enter() != nil {
		return err
	}
	defer c.leave()
	timeout := lookTimeout
	if s.wait > 0 {
		timeout = lateLookTimeout
	}
	cctx, cancel := c.ownContext(ctx, timeout)
	defer cancel()
	holder, waiting, ok := c.look(cctx, e.Key, s.submitted)
	if ok && holder.Phase == driver.Held {
		shown := claimOf(&holder)
		e.Holder, e.Waiters, e.permits = &shown, waiting, s.limit
	}
	return err
}

// lookAhead looks up the holder in the background: for a traced waiter, to link to the holder's
// span, and for a waiter for a permit, to log a limit that differs.
func (c *Client) lookAhead(ctx context.Context, key string, s *lockSettings) {
	traced := c.tracer != nil && s.info.Trace != ""
	if !traced && (s.mode != driver.Permit || c.quiet) {
		return
	}
	if !traced && !c.looksAhead(permitKey{key, s.limit}) {
		return
	}
	span, submitted, limit := trace.SpanFromContext(ctx), s.submitted, s.limit
	c.workers.Go(func() {
		cctx, cancel := c.callContext(context.WithoutCancel(ctx), linkTimeout)
		defer cancel()
		holder, _, _ := c.look(cctx, key, submitted)
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

// looksAhead reports whether no waiter for the same permits has looked within the last second:
// one lookup for all of them is enough to find that the limits differ.
func (c *Client) looksAhead(k permitKey) bool {
	const every, most = int64(time.Second), 1024
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.now()
	if at, ok := c.lookedAhead[k]; ok && now-at < every {
		return false
	}
	if c.lookedAhead == nil || len(c.lookedAhead) >= most {
		c.lookedAhead = map[permitKey]int64{}
	}
	c.lookedAhead[k] = now
	return true
}

// look returns the holder of a key and the number of waiters, without the caller's own claim,
// which is being released.
func (c *Client) look(ctx context.Context, key, own string) (holder driver.Claim, waiting int, ok bool) {
	if looker, can := c.store.(driver.HolderFinder); can {
		holder, waiting, err := looker.Look(ctx, key, own)
		return holder, waiting, err == nil
	}
	admin, can := c.store.(driver.Admin)
	if !can {
		return driver.Claim{}, 0, false
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
	return holder, waiting, err == nil
}
