package dlock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
)

// Guards is the handle of several locks that are held together. It comes from AcquireAll.
type Guards struct {
	all    []*Guard // by key
	ctx    context.Context
	cancel context.CancelCauseFunc
}

// AcquireAll waits until it has all keys, and returns one handle for them. It has all of them or none: if
// one cannot be had, because ctx ends, the wait is over, or another of them is lost meanwhile, it releases the
// others and returns the error for that one.
//
// The order of keys does not matter, and a key that is named twice is locked once: while AcquireAll
// waits for a key, it holds only keys that are smaller. So callers never wait for each other in a
// circle, unless they hold other locks as well. First it tries all keys at once, without waiting.
//
// Every option applies to each key. WithWait limits the wait for all of them together, and WithMinHold and
// WithMaxHold count from when each key was acquired.
func (c *Client) AcquireAll(ctx context.Context, keys []string, opts ...LockOption) (*Guards, error) {
	sorted, s, err := c.checkAll(ctx, keys, opts)
	if err != nil {
		return nil, err
	}
	a := allAcquisition{client: c, keys: sorted, settings: s, guards: make([]*Guard, len(sorted)), errs: make([]error, len(sorted))}
	if s.hasWait {
		a.deadline = time.Now().Add(s.wait)
	}
	if err := a.run(ctx); err != nil {
		return nil, err
	}
	return newGuards(ctx, a.guards), nil
}

// DoAll is Do for several keys, as AcquireAll locks them. The context of fn ends when one of the locks is
// lost.
func (c *Client) DoAll(ctx context.Context, keys []string, fn func(context.Context) error, opts ...LockOption) (err error) {
	if fn == nil {
		return fail(opDoAll, "", fmt.Errorf("%w: function is nil", ErrInvalidConfig))
	}
	all, err := c.AcquireAll(ctx, keys, opts...)
	if err != nil {
		return err
	}
	var inner context.Context
	cancel := func() {}
	defer func() { // also if fn panics
		cancel()
		err = errors.Join(err, all.finish(ctx))
	}()
	inner, cancel = all.WithContext(ctx)
	return fn(inner)
}

const (
	opAll   = "acquire all"
	opDoAll = "do all"
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

// An allAcquisition is one call of AcquireAll.
type allAcquisition struct {
	client   *Client
	keys     []string
	settings lockSettings
	deadline time.Time // of WithWait
	guards   []*Guard  // by key; nil where there is none
	errs     []error
}

// run tries all keys, and then waits for those that it does not have, one after the other.
func (a *allAcquisition) run(ctx context.Context) error {
	returned := false
	defer func() {
		if !returned { // a hook of the backend's client or the caller's context panicked
			a.giveUp(ctx, a.guards)
		}
	}()
	if len(a.keys) > 1 || !a.settings.waits() {
		a.tryAll(ctx)
	}
	first := slices.Index(a.guards, nil)
	var err error
	if first >= 0 {
		a.giveUp(ctx, a.guards[first:]) // never wait for a key while holding a greater one
		err = a.errs[first]
		if a.settings.waits() {
			err = a.waitFor(ctx, first)
		}
	}
	returned = true
	if err != nil {
		a.giveUp(ctx, a.guards)
	}
	return err
}

// tryAll tries all keys at once, without waiting. A panic is passed on to the caller when all have ended.
func (a *allAcquisition) tryAll(ctx context.Context) {
	try := a.settings
	try.hasWait, try.wait = true, 0
	var panics []any
	var mu sync.Mutex
	each(len(a.keys), func(i int) {
		defer func() {
			if p := recover(); p != nil {
				mu.Lock()
				defer mu.Unlock()
				panics = append(panics, p)
			}
		}()
		s := try
		a.guards[i], a.errs[i] = a.client.acquire(ctx, a.keys[i], &s)
		if a.errs[i] != nil {
			a.guards[i], a.errs[i] = nil, fail(opAll, a.keys[i], a.errs[i])
		}
	})
	if len(panics) > 0 {
		panic(panics[0])
	}
}

// waitFor waits for the keys from the first on. All before it are held.
func (a *allAcquisition) waitFor(ctx context.Context, first int) error {
	held, lose := context.WithCancelCause(ctx)
	defer lose(nil)
	for i, key := range a.keys {
		if i >= first {
			s := a.settings
			if s.hasWait {
				s.wait = max(time.Until(a.deadline), 0)
			}
			g, err := a.client.acquire(held, key, &s)
			if lost := a.lost(ctx, held); err != nil && lost != nil {
				return lost
			}
			if err != nil {
				return a.client.addHolder(ctx, fail(opAll, key, err), &s)
			}
			a.guards[i] = g.withValues(ctx)
		}
		defer a.guards[i].onEnd(lose)() //nolint:contextcheck // it has a context of its own
	}
	return a.lost(ctx, held)
}

// lost returns why one of the locks that were already held has ended.
func (a *allAcquisition) lost(ctx, held context.Context) error {
	if ctx.Err() == nil && held.Err() != nil {
		return context.Cause(held)
	}
	return nil
}

// giveUp releases locks at once, even before their minimum hold. A release that is not confirmed continues
// in the background.
func (a *allAcquisition) giveUp(ctx context.Context, guards []*Guard) {
	each(len(guards), func(i int) {
		g := guards[i]
		if g == nil {
			return
		}
		guards[i] = nil
		c := g.claim.client
		c.mu.Lock()
		if x := g.claim.extras; x != nil {
			without := *x
			without.minHold = 0
			g.claim.extras = &without
		}
		c.unlock()
		_ = g.Unlock(ctx)
	})
}

// each calls f for 0 to n-1, several at a time, and returns when all have returned.
func each(n int, f func(i int)) {
	const atOnce = 64
	if n == 1 {
		f(0)
		return
	}
	var wg sync.WaitGroup
	next := make(chan int, n)
	for i := range n {
		next <- i
	}
	close(next)
	for range min(n, atOnce) {
		wg.Go(func() {
			for i := range next {
				f(i)
			}
		})
	}
	wg.Wait()
}

// onEnd calls f with the cause when g ends. The result stops that.
func (g *Guard) onEnd(f func(error)) (stop func()) {
	end, _ := g.contexts()
	stopped := context.AfterFunc(end, func() { f(context.Cause(end)) })
	return func() { stopped() }
}

func newGuards(ctx context.Context, all []*Guard) *Guards {
	values := context.WithoutCancel(ctx)
	for _, g := range all {
		values = marked(values, g)
	}
	gs := &Guards{all: all}
	gs.ctx, gs.cancel = context.WithCancelCause(values)
	for _, g := range all {
		g.onEnd(gs.cancel) //nolint:contextcheck // it has a context of its own
	}
	return gs
}

// Keys returns the keys, in order.
func (gs *Guards) Keys() []string {
	keys := make([]string, len(gs.all))
	for i, g := range gs.all {
		keys[i] = g.Key()
	}
	return keys
}

// Token returns the fencing token of one of the keys, and 0 for another key.
func (gs *Guards) Token(key string) int64 {
	for _, g := range gs.all {
		if g.Key() == key {
			return g.Token()
		}
	}
	return 0
}

// Context returns a context that ends when the ownership of one of the keys ends. It has the values of the
// context of AcquireAll, and neither its cancellation nor its deadline.
func (gs *Guards) Context() context.Context {
	if gs.ctx == nil {
		ctx, cancel := context.WithCancelCause(context.Background())
		cancel(errNoGuards())
		return ctx
	}
	return gs.ctx
}

func errNoGuards() error {
	return fail("hold", "", fmt.Errorf("%w: zero Guards", ErrLockNotHeld))
}

// WithContext returns a child of parent that also ends when the ownership of one of the keys ends. Call
// cancel when the work is done.
func (gs *Guards) WithContext(parent context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := parent, context.CancelFunc(func() {})
	if len(gs.all) == 0 {
		return context.WithCancel(gs.Context())
	}
	for _, g := range gs.all {
		outer := cancel
		var inner context.CancelFunc
		ctx, inner = g.WithContext(ctx)
		cancel = func() { inner(); outer() }
	}
	return ctx, cancel
}

// Done returns a channel that is closed when the ownership of one of the keys ends.
func (gs *Guards) Done() <-chan struct{} { return gs.Context().Done() }

// Err returns nil while all keys are held, and otherwise why the first of those that are not has ended.
func (gs *Guards) Err() error {
	for _, g := range gs.all {
		if err := g.Err(); err != nil {
			return err
		}
	}
	if len(gs.all) == 0 {
		return errNoGuards()
	}
	return nil
}

// Remaining returns how long the ownership of all keys lasts if no further renewal succeeds.
func (gs *Guards) Remaining() (least time.Duration) {
	for i, g := range gs.all {
		if left := g.Remaining(); i == 0 || left < least {
			least = left
		}
	}
	return least
}

// Extend is Guard.Extend for all keys. It returns the errors of those that were not extended.
func (gs *Guards) Extend(ctx context.Context, ttl time.Duration) error {
	if len(gs.all) == 0 {
		return errNoGuards()
	}
	errs := make([]error, len(gs.all))
	each(len(gs.all), func(i int) { errs[i] = gs.all[i].Extend(ctx, ttl) })
	return errors.Join(errs...)
}

// Unlock releases all keys, as Guard.Unlock does. The context ends first. It returns the errors of those that
// were lost or whose release was not confirmed.
func (gs *Guards) Unlock(ctx context.Context) error {
	if len(gs.all) == 0 {
		return errNoGuards()
	}
	gs.cancel(nil)
	errs := make([]error, len(gs.all))
	each(len(gs.all), func(i int) { errs[i] = gs.all[i].Unlock(ctx) })
	return errors.Join(errs...)
}

// finish unlocks after the work was done. A release that is not confirmed is logged, and is not an error.
func (gs *Guards) finish(ctx context.Context) error {
	gs.cancel(nil)
	errs := make([]error, len(gs.all))
	each(len(gs.all), func(i int) {
		g := gs.all[i]
		err := g.Unlock(ctx)
		if errors.Is(err, ErrUnknownOutcome) {
			g.claim.client.logUnconfirmed(g, err)
			err = nil
		}
		errs[i] = err
	})
	return errors.Join(errs...)
}
