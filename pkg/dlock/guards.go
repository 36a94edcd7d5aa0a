package dlock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// Guards is the handle of several locks that are held together. It comes from AcquireAll, or from a Pair.
type Guards struct {
	all    []*Guard        // by key; of a Pair: old, new
	pair   bool            // one key on both Clients of a Pair
	end    context.Context // ends with the first of them
	cancel context.CancelCauseFunc
	ctx    context.Context // the same with values
}

// usable reports whether gs came from AcquireAll or a Pair.
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
	return slices.Compact(keys)
}

// Token returns the fencing token of one of the keys, and 0 for another key. Of a Pair it is the larger of its two
// tokens, which is not always what a resource needs: see Pair.Tokens.
func (gs *Guards) Token(key string) (token int64) {
	if !gs.usable() {
		return 0
	}
	for _, g := range gs.all {
		if g.Key() == key {
			token = max(token, g.Token())
		}
	}
	return token
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
	return joinContexts(gs.end, parent, gs.marks(nil))
}

// marks returns a mark for each Guard, innermost last. Of a Pair, the innermost has the larger token, so that
// FromContext returns that one.
func (gs *Guards) marks(m *mark) *mark {
	all := gs.all
	if gs.pair && all[0].token > all[1].token {
		all = []*Guard{all[1], all[0]}
	}
	for _, g := range all {
		m = &mark{guard: g, outer: m}
	}
	return m
}

// Done returns a channel that is closed when the ownership of one of the keys ends.
func (gs *Guards) Done() <-chan struct{} { return gs.Context().Done() }

// Err returns nil while all keys are held, and otherwise why the first of those that are not has ended.
func (gs *Guards) Err() error {
	if !gs.usable() {
		return errNoGuards("hold")
	}
	for i, g := range gs.all {
		if err := g.Err(); err != nil {
			return gs.side(i).name(g.claim.client, err)
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
	each(len(gs.all), func(i int) { errs[i] = gs.side(i).name(gs.all[i].claim.client, gs.all[i].Extend(ctx, ttl)) })
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
	unlocked := func(i int, err error) {
		errs[i] = gs.side(i).name(gs.all[i].claim.client, err)
		if done && errors.Is(errs[i], ErrUnknownOutcome) {
			gs.all[i].claim.client.logUnconfirmed(gs.all[i], errs[i])
			errs[i] = nil
		}
	}
	if !gs.canBatch() {
		gs.each(func(i int) { unlocked(i, gs.all[i].Unlock(ctx)) })
		return errors.Join(errs...)
	}
	gs.all[0].claim.client.unlockBatch(ctx, gs.all, errs)
	for i, err := range errs {
		unlocked(i, err)
	}
	return errors.Join(errs...)
}

// each calls f for every Guard: for those of a Pair one after the other, new before old, also after a panic. So a key that
// is free on old is free on new, unless WithMinHold or WithAsyncUnlock delays its release.
func (gs *Guards) each(f func(i int)) {
	if !gs.pair {
		each(len(gs.all), f)
		return
	}
	for i := range gs.all {
		defer f(i)
	}
}

// side returns which Client of a Pair a Guard is on.
func (gs *Guards) side(i int) side {
	if !gs.pair {
		return ""
	}
	return sides[i]
}

// run runs fn and releases all keys, even if fn panics. It does not recover.
func (gs *Guards) run(ctx context.Context, fn func(context.Context) error) (err error) {
	var inner context.Context
	cancel := func() {}
	defer func() {
		cancel()
		if failed := gs.unlock(ctx, true); failed != nil {
			err = errors.Join(err, failed)
		}
	}()
	inner, cancel = gs.WithContext(ctx) // calls methods of ctx, which may panic
	return fn(inner)
}
