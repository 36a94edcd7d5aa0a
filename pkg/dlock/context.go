package dlock

import (
	"cmp"
	"context"
	"errors"
	"time"
)

// Context returns a context that ends when ownership ends: by Unlock, by Close,
// or by a loss. context.Cause then tells why. It has the values of the context that
// the lock was acquired with, and neither its cancellation nor its deadline. It carries
// the Guard, for FromContext and for re-entry.
func (g *Guard) Context() context.Context {
	end, ctx := g.contexts()
	if ctx != nil || !g.usable() {
		return cmp.Or(ctx, end)
	}
	c := g.claim.client
	c.mu.Lock()
	asked := g.asked
	c.unlock()
	values, outer := valuesOf(asked) // the user's code, and so not under mu
	made := &guardContext{both{end, values}, &mark{guard: g, outer: outer}}
	c.mu.Lock()
	defer c.unlock()
	g.asked = values // the guards around this one may end before it does
	if g.own.ctx == nil {
		g.own.ctx = made
	}
	return g.own.ctx
}

// A guardContext is what Guard.Context returns.
type guardContext struct {
	both
	mark *mark
}

func (c *guardContext) Value(key any) any {
	if _, marks := key.(markKey); marks {
		return c.mark
	}
	return c.both.Value(key)
}

// valuesOf returns a context that has the values of ctx and no end, and the guards that ctx
// carries and that are still held. If ctx is that of a Guard, the values are those which that one
// was acquired with, so that a chain of locks of which each is acquired under the one before does
// not keep them all.
func valuesOf(ctx context.Context) (context.Context, *mark) {
	held := markOf(ctx).living()
	if of, ok := ctx.(*guardContext); ok {
		return of.parent, held
	}
	return context.WithoutCancel(ctx), held
}

// contexts returns the context that ends with the ownership, which is made when it is first
// asked for, and the one with values as well, if it was.
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
	if !g.holds() { // another goroutine that ended it may not have come to the context yet
		c.endings = append(c.endings, ending{o.cancel, o.cause})
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
	ctx, cancel := context.WithCancelCause(marked(both{guard, parent}, g))
	end := func() { cancel(nil) }
	at, dated := parent.Deadline()
	if dated { // so that ctx.Err says that it was the deadline
		var stop context.CancelFunc
		ctx, stop = context.WithDeadlineCause(ctx, at, deadlineOf{parent})
		end = func() { stop(); cancel(nil) }
	}
	follow := func() {
		if dated && errors.Is(parent.Err(), context.DeadlineExceeded) && !time.Now().Before(at) {
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

// deadlineOf is the cause of a context that ended at the deadline of another. It is the cause of
// that one, which is known when it has ended.
type deadlineOf struct{ parent context.Context }

func (d deadlineOf) Error() string { return d.Unwrap().Error() }

func (d deadlineOf) Unwrap() error { return cmp.Or(context.Cause(d.parent), context.DeadlineExceeded) }

// both ends with the guard's context, which has no values, and has the values and the
// deadline of parent. The guard is asked first, so that the standard library links its
// children to it directly and a loss reaches them without another goroutine.
type both struct {
	context.Context // the guard's
	parent          context.Context
}

func (b both) Deadline() (time.Time, bool) { return b.parent.Deadline() }

func (b both) Value(key any) any {
	if _, ours := key.(markKey); !ours {
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
