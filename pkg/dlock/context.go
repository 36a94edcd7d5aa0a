package dlock

import (
	"cmp"
	"context"
	"errors"
	"time"
)

// Context returns a context that ends when ownership ends: by Unlock, by Close,
// or by a loss. context.Cause then returns why. It has the values of the context that
// the lock was acquired with, and neither its cancellation nor its deadline. It carries
// the Guard, for FromContext and for re-entry.
func (g *Guard) Context() context.Context {
	end, ctx := g.contexts()
	if ctx != nil || !g.usable() {
		return cmp.Or(ctx, end)
	}
	c := g.claim.client
	c.mu.Lock()
	asked := g.callCtx
	c.unlock()
	values, outer := valuesOf(asked) // runs the user's code, so not under mu
	made := &guardContext{joinedContext{end, values}, &mark{guard: g, outer: outer}}
	c.mu.Lock()
	defer c.unlock()
	g.callCtx = values // does not keep outer guards, which may end first
	if g.own.ctx == nil {
		g.own.ctx = made
	}
	return g.own.ctx
}

// A guardContext is what Guard.Context returns.
type guardContext struct {
	joinedContext
	mark *mark
}

func (c *guardContext) Value(key any) any {
	if _, isMark := key.(markKey); isMark {
		return c.mark
	}
	return c.joinedContext.Value(key)
}

// valuesOf returns a context with the values of ctx that never ends, and the guards that ctx
// carries and that are still held. If ctx is the context of a Guard, valuesOf returns the values
// that this Guard was acquired with. So a chain of locks, each acquired under the one before,
// does not keep all of their contexts in memory.
func valuesOf(ctx context.Context) (context.Context, *mark) {
	held := markOf(ctx).withoutEnded()
	if of, ok := ctx.(*guardContext); ok {
		return of.parent, held
	}
	return context.WithoutCancel(ctx), held
}

// contexts returns the context that ends with the ownership, and creates it if necessary. It also
// returns the context with values, or nil if Context was not called yet.
func (g *Guard) contexts() (end, ctx context.Context) {
	if !g.usable() {
		end, cancel := context.WithCancelCause(context.Background())
		cancel(fail("context", "", ErrLockNotHeld))
		return end, nil
	}
	c := g.claim.client
	c.mu.Lock()
	defer c.unlock()
	o := g.ownership()
	if o.end == nil {
		o.end, o.cancel = context.WithCancelCause(context.Background())
	}
	if !g.holds() { // the goroutine that ended it may not have ended the context yet
		c.cancellations = append(c.cancellations, cancellation{o.cancel, o.cause})
	}
	if o.ctx == nil {
		return o.end, nil
	}
	return o.end, o.ctx
}

// WithContext returns a child of parent that also ends when ownership does, with
// the loss as its cause. Call cancel when the work is done.
func (g *Guard) WithContext(parent context.Context) (context.Context, context.CancelFunc) {
	if parent == nil {
		parent = context.Background()
	}
	guard, _ := g.contexts()
	if !g.usable() {
		return context.WithCancel(guard)
	}
	return joinContexts(guard, parent, &mark{guard: g})
}

// joinContexts returns a child of parent that also ends with another context, which has no values. It carries
// the guards of innermost, and then those of parent.
func joinContexts(guard, parent context.Context, innermost *mark) (context.Context, context.CancelFunc) {
	last := innermost
	for last.outer != nil {
		last = last.outer
	}
	last.outer = markOf(parent).withoutEnded()
	ctx, cancel := context.WithCancelCause(context.WithValue(joinedContext{guard, parent}, markKey{}, innermost))
	end := func() { cancel(nil) }
	at, hasDeadline := parent.Deadline()
	if hasDeadline { // so that ctx.Err is DeadlineExceeded
		var stop context.CancelFunc
		ctx, stop = context.WithDeadlineCause(ctx, at, deadlineOf{parent})
		end = func() { stop(); cancel(nil) }
	}
	follow := func() {
		if hasDeadline && errors.Is(parent.Err(), context.DeadlineExceeded) && !time.Now().Before(at) {
			return // ctx has the same deadline
		}
		cancel(context.Cause(parent))
	}
	if parent.Err() != nil {
		follow()
	}
	unlink := context.AfterFunc(parent, follow)
	return ctx, func() { unlink(); end() }
}

// deadlineOf is the cause of a context that ended at the deadline of parent. It unwraps to the
// cause of parent, which is known only after parent has ended.
type deadlineOf struct{ parent context.Context }

func (d deadlineOf) Error() string { return d.Unwrap().Error() }

func (d deadlineOf) Unwrap() error { return cmp.Or(context.Cause(d.parent), context.DeadlineExceeded) }

// joinedContext ends with the guard's context, which has no values, and has the values and the
// deadline of parent. Value asks the guard's context first, so that the standard library
// attaches children to it directly, and a loss reaches them without another goroutine.
type joinedContext struct {
	context.Context // the guard's
	parent          context.Context
}

func (b joinedContext) Deadline() (time.Time, bool) { return b.parent.Deadline() }

func (b joinedContext) Value(key any) any {
	if _, isMark := key.(markKey); !isMark {
		if v := b.Context.Value(key); v != nil {
			return v
		}
	}
	return b.parent.Value(key)
}

// Done returns a channel that is closed when ownership ends.
func (g *Guard) Done() <-chan struct{} {
	end, _ := g.contexts()
	return end.Done()
}
