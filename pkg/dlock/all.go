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
	all    []*Guard        // by key
	end    context.Context // ends with the first of them
	cancel context.CancelCauseFunc
	ctx    context.Context // the same with values
}

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
	a := allAcquisition{client: c, keys: sorted, settings: s, guards: make([]*Guard, len(sorted))}
	a.end, a.cancel = context.WithCancelCause(context.Background())
	if s.hasWait {
		a.deadline = time.Now().Add(s.wait)
	}
	return a.run(ctx)
}

// DoAll runs fn while it holds several keys, which it locks as AcquireAll does. In all else it is like Do.
func (c *Client) DoAll(ctx context.Context, keys []string, fn func(context.Context) error, opts ...LockOption) (err error) {
	if fn == nil {
		return fail("do all", "", fmt.Errorf("%w: function is nil", ErrInvalidConfig))
	}
	all, err := c.AcquireAll(ctx, keys, opts...)
	if err != nil {
		return err
	}
	var inner context.Context
	cancel := func() {}
	defer func() { // also if fn panics
		cancel()
		if failed := all.unlock(ctx, true); failed != nil {
			err = errors.Join(err, failed)
		}
	}()
	inner, cancel = all.WithContext(ctx)
	return fn(inner)
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

// An allAcquisition is one call of AcquireAll.
type allAcquisition struct {
	client   *Client
	keys     []string
	settings lockSettings
	deadline time.Time // of WithWait
	guards   []*Guard  // by key; nil where there is none
	end      context.Context
	cancel   context.CancelCauseFunc
}

// run tries all keys, and then waits for those that it does not have, one after the other.
func (a *allAcquisition) run(ctx context.Context) (all *Guards, err error) {
	defer func() { //nolint:contextcheck // that of the caller may have panicked
		if all == nil { // also if a hook of the backend's client or the caller's context panicked
			a.releaseAll(a.guards)
		}
	}()
	if len(a.keys) > 1 && a.settings.waits() {
		a.tryAll(ctx)
	}
	first := slices.Index(a.guards, nil)
	if first >= 0 {
		a.releaseAll(a.guards[first:]) //nolint:contextcheck // as above. Never wait for a key while holding a greater one
	}
	for _, g := range a.guards {
		if g != nil {
			a.join(g)
		}
	}
	if first >= 0 {
		if err := a.waitFor(ctx, first); err != nil {
			return nil, err
		}
	}
	if a.end.Err() != nil {
		return nil, a.lost()
	}
	values, outer := valuesOf(ctx) // runs the user's code
	m := outer
	for _, g := range a.guards {
		m = &mark{guard: g, outer: m}
	}
	return &Guards{all: a.guards, end: a.end, cancel: a.cancel, ctx: &guardContext{joinedContext{a.end, values}, m}}, nil
}

// tryAll tries all keys at once, without waiting for any of them.
func (a *allAcquisition) tryAll(ctx context.Context) {
	if a.settings.hasWait {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, a.deadline)
		defer cancel()
	}
	each(len(a.keys), func(i int) {
		s := a.settings
		s.hasWait, s.wait = true, 0
		g, err := a.client.acquire(ctx, a.keys[i], &s)
		if err == nil {
			a.guards[i] = g
		}
	})
}

// waitFor waits for the keys from the first on. All before it are held.
func (a *allAcquisition) waitFor(ctx context.Context, first int) error {
	held, lose := context.WithCancelCause(ctx)
	defer lose(nil)
	defer context.AfterFunc(a.end, func() { lose(context.Cause(a.end)) })() //nolint:contextcheck // whichever ends first
	for i := first; i < len(a.keys); i++ {
		s := a.settings
		if s.waits() && s.hasWait {
			s.wait = max(time.Until(a.deadline), time.Millisecond) // 0 would mean another try of any length
		}
		g, err := a.client.acquire(held, a.keys[i], &s)
		a.guards[i] = g
		switch {
		case err != nil && a.end.Err() != nil:
			return a.lost()
		case err != nil:
			return a.client.addHolder(ctx, fail(opAll, a.keys[i], err), &s)
		}
		a.join(g.withValues(ctx))
	}
	return nil
}

// lost returns why one of the locks that were already held has ended.
func (a *allAcquisition) lost() error {
	cause := context.Cause(a.end)
	var of *Error
	if errors.As(cause, &of) {
		return fail(opAll, of.Key, of.Err)
	}
	return fail(opAll, a.keys[0], cause)
}

// join makes a Guard end the context of all.
func (a *allAcquisition) join(g *Guard) {
	c := a.client
	c.mu.Lock()
	defer c.unlock()
	o := g.ownership()
	o.end, o.cancel = a.end, a.cancel
	if !g.holds() {
		c.cancellations = append(c.cancellations, cancellation{a.cancel, o.cause})
	}
}

// releaseAll releases locks in the background, even before their minimum hold.
func (a *allAcquisition) releaseAll(guards []*Guard) {
	each(len(guards), func(i int) {
		g := guards[i]
		if g == nil {
			return
		}
		guards[i] = nil
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
	})
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

// usable reports whether gs came from AcquireAll.
func (gs *Guards) usable() bool { return gs != nil && len(gs.all) > 0 }

// Keys returns the keys, in order.
func (gs *Guards) Keys() []string {
	if !gs.usable() {
		return nil
	}
	keys := make([]string, len(gs.all))
	for i, g := range gs.all {
		keys[i] = g.Key()
	}
	return keys
}

// Token returns the fencing token of one of the keys, and 0 for another key.
func (gs *Guards) Token(key string) int64 {
	if !gs.usable() {
		return 0
	}
	for _, g := range gs.all {
		if g.Key() == key {
			return g.Token()
		}
	}
	return 0
}

// Context returns a context that ends when the ownership of one of the keys ends. context.Cause then returns
// why. It has the values of the context of AcquireAll, and neither its cancellation nor its deadline.
func (gs *Guards) Context() context.Context {
	if !gs.usable() {
		ctx, cancel := context.WithCancelCause(context.Background())
		cancel(errNoGuards("context"))
		return ctx
	}
	return gs.ctx
}

func errNoGuards(op string) error {
	return fail(op, "", fmt.Errorf("%w: zero Guards", ErrLockNotHeld))
}

// WithContext returns a child of parent that also ends when the ownership of one of the keys ends, with the
// loss as its cause. Call cancel when the work is done.
func (gs *Guards) WithContext(parent context.Context) (context.Context, context.CancelFunc) {
	if parent == nil {
		parent = context.Background()
	}
	if !gs.usable() {
		return context.WithCancel(gs.Context())
	}
	var m *mark
	for _, g := range gs.all {
		m = &mark{guard: g, outer: m}
	}
	return joinContexts(gs.end, parent, m)
}

// Done returns a channel that is closed when the ownership of one of the keys ends.
func (gs *Guards) Done() <-chan struct{} { return gs.Context().Done() }

// Err returns nil while all keys are held, and otherwise why the first of those that are not has ended.
func (gs *Guards) Err() error {
	if !gs.usable() {
		return errNoGuards("hold")
	}
	for _, g := range gs.all {
		if err := g.Err(); err != nil {
			return err
		}
	}
	return nil
}

// Remaining returns how long the ownership of all keys lasts if no further renewal succeeds.
func (gs *Guards) Remaining() (least time.Duration) {
	if !gs.usable() {
		return 0
	}
	for i, g := range gs.all {
		if left := g.Remaining(); i == 0 || left < least {
			least = left
		}
	}
	return least
}

// Extend is Guard.Extend for all keys. It returns the errors of those that were not extended.
func (gs *Guards) Extend(ctx context.Context, ttl time.Duration) error {
	if !gs.usable() {
		return errNoGuards("extend")
	}
	errs := make([]error, len(gs.all))
	each(len(gs.all), func(i int) { errs[i] = gs.all[i].Extend(ctx, ttl) })
	return errors.Join(errs...)
}

// Unlock releases all keys, as Guard.Unlock does. The contexts end first. It returns the errors of those that
// were lost or whose release was not confirmed.
func (gs *Guards) Unlock(ctx context.Context) error {
	if !gs.usable() {
		return errNoGuards("unlock")
	}
	if ctx == nil {
		return fail("unlock", gs.all[0].Key(), fmt.Errorf("%w: context is nil", ErrInvalidConfig))
	}
	return gs.unlock(ctx, false)
}

// unlock unlocks all keys. If the work is done, a release that is not confirmed is logged, and is no error.
func (gs *Guards) unlock(ctx context.Context, done bool) error {
	gs.cancel(nil)
	errs := make([]error, len(gs.all))
	each(len(gs.all), func(i int) {
		g := gs.all[i]
		errs[i] = g.Unlock(ctx)
		if done && errors.Is(errs[i], ErrUnknownOutcome) {
			g.claim.client.logUnconfirmed(g, errs[i])
			errs[i] = nil
		}
	})
	return errors.Join(errs...)
}
