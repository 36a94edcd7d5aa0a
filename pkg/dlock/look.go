package dlock

import (
	"context"
	"errors"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// lookBound is how long a caller that did not get a lock waits to learn who has it,
// lookBoundLate the same after a WithWait that is over: it is for the error's text.
const (
	lookBound     = 250 * time.Millisecond
	lookBoundLate = 50 * time.Millisecond
)

// busy adds the holder to the error of a caller that found the key taken, if
// the backend can tell soon.
func (c *Client) busy(ctx context.Context, err error, s *lockSettings) error {
	var e *Error
	if !errors.Is(err, ErrLockHeldByOther) || !errors.As(err, &e) || c.enter() != nil {
		return err
	}
	defer c.leave()
	bound := lookBound
	if s.wait > 0 {
		bound = lookBoundLate
	}
	cctx, cancel := c.ownContext(ctx, bound)
	defer cancel()
	holder, waiting, ok := c.look(cctx, e.Key, s.filed)
	if ok && holder.Phase == driver.Held {
		holder.ID = ""
		e.Holder, e.Waiting, e.permits = &holder, waiting, s.limit
	}
	return err
}

// lookAhead finds out what a waiter should know of the holder, if it is traced or wants a
// permit. The waiter does not wait for that.
func (c *Client) lookAhead(ctx context.Context, key string, s *lockSettings) {
	traced := c.tracer != nil && s.info.Trace != ""
	if !traced && (s.mode != driver.Permit || c.quiet) {
		return
	}
	if !traced && !c.looksAhead(permitKey{key, s.limit}) {
		return
	}
	span, filed, limit := trace.SpanFromContext(ctx), s.filed, s.limit
	c.workers.Go(func() {
		cctx, cancel := c.callContext(context.WithoutCancel(ctx), linkBound)
		defer cancel()
		holder, _, _ := c.look(cctx, key, filed)
		if traced {
			c.linkHolder(span, holder)
		}
		if limit > 0 && holder.Limit > 0 && holder.Limit != limit {
			c.logPermitsDiffer(key, limit, holder.Limit)
		}
	})
}

// A permitKey is what waiters for permits have in common.
type permitKey struct {
	key   string
	limit int
}

// looksAhead reports whether a waiter for a permit is the first in a while: of thousands one
// is enough to find out that the numbers differ.
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

// look finds out who holds a key and how many wait, but for a claim of our own that is
// being taken back.
func (c *Client) look(ctx context.Context, key, own string) (holder driver.Claim, waiting int, ok bool) {
	if looker, can := c.store.(driver.Looker); can {
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
