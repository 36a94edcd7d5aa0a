package dlock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
)

// AcquireAll waits until it has all keys, and returns one handle for them. It returns all of them or none: if
// it does not get one, because ctx ends, the wait is over, or another of them is lost meanwhile, it releases the
// others in the background and returns the error for that one.
//
// The order of keys does not matter, and a key that is named twice is locked once: while AcquireAll
// waits for a key, it keeps only keys that are smaller. So callers never wait for each other in a
// circle, unless they hold other locks as well. If it may wait, it first tries all keys at once.
//
// Every option applies to each key. WithWait limits the wait for all of them together. WithMinHold, WithMaxHold
// and, with WithoutRenewal, the TTL count from when each key was acquired, so they may run out while AcquireAll
// waits for the next one. A context that carries the Guard of one of the keys is ErrLockAlreadyHeld, also with
// Config.EnableReentrant.
func (c *Client) AcquireAll(ctx context.Context, keys []string, opts ...LockOption) (*Guards, error) {
	sorted, s, err := c.checkAll(ctx, keys, opts)
	if err != nil {
		return nil, err
	}
	wants := make([]want, len(sorted))
	for i, key := range sorted {
		wants[i] = want{client: c, key: key, settings: s}
	}
	return newAllAcquisition(opAll, wants).run(ctx)
}

// DoAll runs fn while it holds several keys, which it locks as AcquireAll does. In all else it is like Do.
func (c *Client) DoAll(ctx context.Context, keys []string, fn func(context.Context) error, opts ...LockOption) error {
	if fn == nil {
		return fail("do all", "", fmt.Errorf("%w: function is nil", ErrInvalidConfig))
	}
	all, err := c.AcquireAll(ctx, keys, opts...)
	if err != nil {
		return err
	}
	return all.run(ctx, fn)
}

const (
	opAll   = "acquire all"
	maxKeys = 1000 // of one AcquireAll
)

// checkAll refuses bad input before anything is sent. It returns the keys in order, each once.
func (c *Client) checkAll(ctx context.Context, keys []string, opts []LockOption) ([]string, lockSettings, error) {
	if ctx == nil {
		return nil, lockSettings{}, fail(opAll, "", fmt.Errorf("%w: context is nil", ErrInvalidConfig))
	}
	sorted := slices.Clone(keys)
	slices.Sort(sorted)
	sorted = slices.Compact(sorted)
	if len(sorted) == 0 || len(sorted) > maxKeys {
		return nil, lockSettings{}, fail(opAll, "", fmt.Errorf("%w: %d keys, not between 1 and %d", ErrInvalidConfig, len(sorted), maxKeys))
	}
	s, err := c.settings(opts)
	for _, key := range sorted {
		if err == nil {
			err = checkKey(key)
		}
		if err == nil && c.guardFor(ctx, key) != nil {
			err = fmt.Errorf("%w: the context carries its Guard or its owner", ErrLockAlreadyHeld)
		}
		if err != nil {
			return nil, s, fail(opAll, key, err)
		}
	}
	return sorted, s, nil
}

// A want is one of the locks that an allAcquisition acquires.
type want struct {
	client   *Client
	key      string
	settings lockSettings
	side     side // of a Pair; "" for AcquireAll
	doubt    bool // a claim of an earlier attempt may still be stored
}

// An allAcquisition is one call that acquires several locks.
type allAcquisition struct {
	op       string
	wants    []want
	inOrder  bool               // never try one before those in front of it are held
	verify   func(*Guard) error // called with the first one before the second; may be nil
	deadline time.Time          // of WithWait
	guards   []*Guard           // by want; nil where there is none
	end      context.Context
	cancel   context.CancelCauseFunc
}

func newAllAcquisition(op string, wants []want) *allAcquisition {
	a := &allAcquisition{op: op, wants: wants, guards: make([]*Guard, len(wants))}
	a.end, a.cancel = context.WithCancelCause(context.Background())
	if s := &wants[0].settings; s.hasWait {
		a.deadline = time.Now().Add(s.wait)
	}
	return a
}

// run tries all keys, and then waits for those that it does not have, one after the other.
func (a *allAcquisition) run(ctx context.Context) (all *Guards, err error) {
	defer func() { //nolint:contextcheck // that of the caller may have panicked
		if all == nil { // also if a hook of the backend's client or the caller's context panicked
			a.releaseAll(a.guards)
		}
	}()
	if err := a.tryAll(ctx); err != nil {
		return nil, err
	}
	first := slices.Index(a.guards, nil)
	if first >= 0 {
		a.releaseAll(a.guards[first:]) //nolint:contextcheck // as above. Never wait for a key while holding a greater one
	}
	for i, g := range a.guards {
		if g != nil {
			a.join(i)
		}
	}
	if first >= 0 {
		if err := a.waitFor(ctx, first); err != nil {
			return nil, err
		}
		for _, g := range a.guards {
			_ = g.Remaining() // ends one whose lease has ended meanwhile, as in a suspend that was not noticed yet
		}
	}
	if a.end.Err() != nil {
		return nil, a.lost()
	}
	gs := &Guards{all: a.guards, pair: a.inOrder, end: a.end, cancel: a.cancel}
	values, outer := valuesOf(ctx) // runs the user's code
	gs.ctx = &guardContext{joinedContext{a.end, values}, gs.marks(outer)}
	return gs, nil
}

// tryAll tries all keys at once, without waiting for any of them. An error ends the call.
func (a *allAcquisition) tryAll(ctx context.Context) error {
	if a.canBatch() {
		refused, err := a.tryBatch(ctx)
		if err != nil || !refused {
			return err
		}
	}
	if len(a.wants) > 1 && a.wants[0].settings.waits() && !a.inOrder {
		a.tryEach(ctx)
	}
	return nil
}

// tryEach tries all keys at once, each with its own call.
func (a *allAcquisition) tryEach(ctx context.Context) {
	if !a.deadline.IsZero() {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, a.deadline)
		defer cancel()
	}
	each(len(a.wants), func(i int) {
		s := a.wants[i].settings
		s.hasWait, s.wait = true, 0
		g, err := a.wants[i].client.acquire(ctx, a.wants[i].key, &s)
		if err == nil {
			a.guards[i] = g
		}
		a.wants[i].doubt = errors.Is(err, ErrUnknownOutcome)
	})
}

// waitFor waits for the keys from the first on. All before it are held.
func (a *allAcquisition) waitFor(ctx context.Context, first int) error {
	held, stop := endWith(ctx, a.end)
	defer stop()
	for i := first; i < len(a.wants); i++ {
		w := &a.wants[i]
		w.settings.waitUntil(a.deadline)
		g, err := w.client.acquire(held, w.key, &w.settings)
		a.guards[i] = g
		switch {
		case err != nil && a.end.Err() != nil:
			return a.lost()
		case err != nil:
			return w.client.addHolder(ctx, fail(a.op, w.key, w.side.name(w.client, w.unsure(err))), &w.settings)
		}
		g.withValues(ctx)
		a.join(i)
		if i == 0 && a.verify != nil {
			if err := a.verify(g); err != nil {
				return fail(a.op, w.key, err)
			}
		}
	}
	return nil
}

// waitUntil sets what is left of a wait that several locks share. The deadline is zero without WithWait.
func (s *lockSettings) waitUntil(deadline time.Time) {
	if s.waits() && s.hasWait {
		s.wait = max(time.Until(deadline), time.Millisecond) // 0 would mean another try of any length
	}
}

// endWith returns a child of ctx that also ends with end, with its cause.
func endWith(ctx, end context.Context) (child context.Context, stop func()) {
	child, cancel := context.WithCancelCause(ctx)
	unlink := context.AfterFunc(end, func() { cancel(context.Cause(end)) })
	return child, func() { unlink(); cancel(nil) }
}

// lost returns why one of the locks that were already held has ended.
func (a *allAcquisition) lost() error {
	cause := context.Cause(a.end)
	var of *Error
	if errors.As(cause, &of) {
		return fail(a.op, of.Key, of.Err)
	}
	return fail(a.op, a.wants[0].key, cause)
}

// join makes a Guard end the context of all.
func (a *allAcquisition) join(i int) {
	g, w := a.guards[i], &a.wants[i]
	c := w.client
	c.mu.Lock()
	defer c.unlock()
	o := g.ownership()
	o.end, o.cancel = a.end, func(cause error) { a.cancel(w.side.name(c, cause)) }
	if !g.holds() {
		c.cancellations = append(c.cancellations, cancellation{o.cancel, o.cause})
	}
}

// releaseAll releases locks in the background, even before their minimum hold.
func (a *allAcquisition) releaseAll(guards []*Guard) {
	each(len(guards), func(i int) {
		g := guards[i]
		if g != nil {
			guards[i] = nil
			g.takeBack()
		}
	})
}

// takeBack releases a lock that its caller never got, in the background and even before its minimum hold.
func (g *Guard) takeBack() {
	c := g.claim.client
	c.mu.Lock()
	g.claim.asyncUnlock = true
	if x := g.claim.extras; x != nil {
		without := *x
		without.minHold = 0
		g.claim.extras = &without
	}
	c.unlock()
	_ = g.Unlock(context.Background())
}

// each calls f for 0 to n-1, several at a time, and returns when all have returned. A panic of one of them is
// passed on then.
func each(n int, f func(i int)) {
	const atOnce = 64
	var wg sync.WaitGroup
	var mu sync.Mutex
	var panics []any
	one := func(i int) {
		returned := false
		defer func() {
			if !returned {
				mu.Lock()
				defer mu.Unlock()
				panics = append(panics, recover())
			}
		}()
		f(i)
		returned = true
	}
	next := make(chan int, n)
	for i := range n {
		next <- i
	}
	close(next)
	for range min(n, atOnce) {
		wg.Go(func() {
			for i := range next {
				one(i)
			}
		})
	}
	wg.Wait()
	if len(panics) > 0 {
		panic(panics[0])
	}
}
