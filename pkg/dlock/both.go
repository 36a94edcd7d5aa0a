package dlock

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"sync/atomic"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// A Pair locks each key on two Clients, while a fleet of processes moves from one backend to another. It comes from
// Both.
type Pair struct {
	clients  [2]*Client // by side: old, new
	closed   atomic.Bool
	verified atomic.Bool // it was asked whether the Clients store the same locks
}

var _ Locker = (*Pair)(nil)

// Both returns a Locker that holds each key on both Clients: it locks the key on old and then on new, and unlocks it in
// the opposite order. A process that locks with it excludes those that lock on old only, and those that lock on new only.
//
// To move a fleet, first restart its processes one by one so that they use Both. When no process is left that locks on old
// only, restart them one by one so that they lock on new only. Processes on old only and on new only must never run at
// the same time: they do not exclude each other. See docs/migration.md.
//
// The Clients may have the same kind of backend, but must not store the same locks: use another server or another
// prefix. All processes must give them in the same order. Both neither opens nor closes them.
func Both(old, new *Client) (*Pair, error) {
	const op = "both"
	switch {
	case old == nil, new == nil:
		return nil, fail(op, "", fmt.Errorf("%w: a Client is nil", ErrInvalidConfig))
	case old == new:
		return nil, fail(op, "", fmt.Errorf("%w: old and new are the same Client", ErrInvalidConfig))
	}
	return &Pair{clients: [2]*Client{old, new}}, nil
}

// A side says which Client of a Pair a lock is on.
type side string

var sides = [2]side{"old", "new"}

// name says in err on which Client it occurred. It returns err as it is if that does not belong to a Pair.
func (s side) name(c *Client, err error) error {
	if err == nil || s == "" {
		return err
	}
	if e, ok := err.(*Error); ok { //nolint:errorlint // only the outermost error
		named := *e
		named.Err = s.name(c, e.Err)
		return &named
	}
	return fmt.Errorf("on the %s backend (%s): %w", s, c.caps.Name, err)
}

// Acquire is Client.Acquire on both Clients, and returns one handle for them: its context ends when the first of the two
// locks ends, and Guards.Token returns the larger token. It returns both locks or none: if it does not get the
// second one, it releases the first one in the background. Errors name the Client on which it failed.
//
// Every option applies to both. WithWait limits both waits together. WithMinHold, WithMaxHold and, with WithoutRenewal,
// the TTL count from when each lock was acquired. WithOwnLease is ErrInvalidConfig.
func (p *Pair) Acquire(ctx context.Context, key string, opts ...LockOption) (*Guards, error) {
	return p.acquire(ctx, "acquire", key, opts)
}

// TryAcquire is Acquire without waiting. If another caller holds the key on one of the Clients, the error is
// ErrLockHeldByOther.
func (p *Pair) TryAcquire(ctx context.Context, key string, opts ...LockOption) (*Guards, error) {
	return p.acquire(ctx, "try acquire", key, append(opts[:len(opts):len(opts)], WithWait(0)))
}

func (p *Pair) acquire(ctx context.Context, op, key string, opts []LockOption) (*Guards, error) {
	wants, err := p.check(ctx, key, opts)
	if err != nil {
		return nil, fail(op, key, err)
	}
	for _, w := range wants {
		if w.client.guardFor(ctx, key) != nil {
			return nil, fail(op, key, w.side.name(w.client, fmt.Errorf("%w: the context carries its Guard or its owner", ErrLockAlreadyHeld)))
		}
	}
	return p.acquireChecked(ctx, op, wants)
}

func (p *Pair) acquireChecked(ctx context.Context, op string, wants []want) (*Guards, error) {
	a := newAllAcquisition(op, wants)
	a.inOrder = true
	a.verify = func(g *Guard) error { return p.verify(ctx, g) }
	return a.run(ctx)
}

// Do is Client.Do on both Clients: it runs fn while it holds the key on both. With Config.EnableReentrant of both
// Clients, a Do inside a Do of the same key runs fn at once under the outer locks.
func (p *Pair) Do(ctx context.Context, key string, fn func(context.Context) error, opts ...LockOption) error {
	const op = "do"
	if fn == nil {
		return fail(op, key, fmt.Errorf("%w: function is nil", ErrInvalidConfig))
	}
	wants, err := p.check(ctx, key, opts)
	if err != nil {
		return fail(op, key, err)
	}
	outer := [2]*Guard{p.clients[0].guardFor(ctx, key), p.clients[1].guardFor(ctx, key)}
	switch {
	case outer[0] != nil && outer[1] != nil:
		first, second := 0, 1
		if outer[0].Token() > outer[1].Token() {
			first, second = 1, 0 // FromContext returns the greater token, as with the outer locks
		}
		return p.clients[first].doInside(ctx, outer[first], &wants[first].settings, func(ctx context.Context) error {
			return p.clients[second].doInside(ctx, outer[second], &wants[second].settings, fn)
		})
	case outer[0] != nil || outer[1] != nil:
		return fail(op, key, fmt.Errorf("%w, on one of the two Clients, by the Guard or the owner that the context carries", ErrLockAlreadyHeld))
	}
	all, err := p.acquireChecked(ctx, op, wants)
	if err != nil {
		return err
	}
	return all.run(ctx, fn)
}

// check refuses bad input before anything is sent.
func (p *Pair) check(ctx context.Context, key string, opts []LockOption) ([]want, error) {
	if err := p.usable(); err != nil {
		return nil, err
	}
	if p.closed.Load() {
		return nil, ErrClosed
	}
	wants := make([]want, len(p.clients))
	for i, c := range p.clients {
		s, err := c.check(ctx, key, opts)
		if err == nil && s.ownLease {
			err = fmt.Errorf("%w: WithOwnLease on two backends", ErrInvalidConfig)
		}
		if err != nil {
			return nil, sides[i].name(c, err)
		}
		s.info.Both = true
		wants[i] = want{client: c, key: key, settings: s, side: sides[i]}
	}
	return wants, nil
}

func (p *Pair) usable() error {
	if p == nil || p.clients[0] == nil {
		return fmt.Errorf("%w: zero Pair; use Both", ErrInvalidConfig)
	}
	return nil
}

// verify refuses two Clients that store the same locks: the second lock would wait for the first one forever. It asks
// until it has an answer.
func (p *Pair) verify(ctx context.Context, old *Guard) error {
	c := p.clients[1]
	if p.verified.Load() || !old.usable() || c.beginCall() != nil {
		return nil
	}
	defer c.endCall()
	cctx, cancel := c.ownContext(ctx, findTimeout)
	defer cancel()
	stored, err := c.storesHolder(cctx, old.claim)
	switch {
	case stored:
		return fmt.Errorf("%w: old and new store the same locks; they need different servers or prefixes", ErrInvalidConfig)
	case err == nil, errors.Is(err, ErrUnsupported):
		p.verified.Store(true)
	}
	return nil
}

// storesHolder reports whether a claim that holds its key is stored by the backend of this Client.
func (c *Client) storesHolder(ctx context.Context, cl *claim) (bool, error) {
	if cl.mode == driver.Exclusive {
		holder, _, err := c.findHolder(ctx, cl.key, "") // there is only one
		return err == nil && holder.ID == cl.id, err
	}
	admin, found := c.store.(driver.Admin)
	if !found {
		return false, errNoAnswer // an exclusive lock may find out
	}
	claims, err := admin.Inspect(ctx, cl.key)
	return slices.ContainsFunc(claims, func(c driver.Claim) bool { return c.ID == cl.id }), err
}

// Lock is Client.Lock on both Clients. See Acquire for how it waits and fails. Client.Held of each Client returns its
// Guard. After a loss on either of them, Lock returns ErrOwnershipLost until Unlock was called.
func (p *Pair) Lock(ctx context.Context, key string, opts ...LockOption) error {
	wants, err := p.check(ctx, key, opts)
	if err != nil {
		return fail("lock", key, err)
	}
	failed, err := p.lock(ctx, "lock", wants)
	if err != nil && failed != nil {
		return failed.client.addHolder(ctx, err, &failed.settings)
	}
	return err
}

// TryLock is Client.TryLock on both Clients. It returns (false, nil) if another caller holds the key on one of them.
func (p *Pair) TryLock(ctx context.Context, key string, opts ...LockOption) (bool, error) {
	const op = "try lock"
	wants, err := p.check(ctx, key, opts)
	if err != nil {
		return false, fail(op, key, err)
	}
	for i := range wants {
		wants[i].settings.wait, wants[i].settings.hasWait = 0, true
	}
	_, err = p.lock(ctx, op, wants)
	if errors.Is(err, ErrLockHeldByOther) {
		return false, nil
	}
	return err == nil, err
}

// lock locks a key on both Clients, or on none. It also returns on which it failed.
func (p *Pair) lock(ctx context.Context, op string, wants []want) (failed *want, err error) {
	old, other, locked := &wants[0], &wants[1], 0
	defer func() { //nolint:contextcheck // that of the caller may have panicked, as may a hook of the backend's client
		for i := range locked {
			if err != nil || locked == 1 {
				wants[i].client.takeBackKey(wants[i].key)
			}
		}
	}()
	deadline := time.Now().Add(old.settings.wait)
	if err := old.client.lock(ctx, old.key, &old.settings); err != nil {
		if lost := other.client.lostKey(other.key); lost != nil && errors.Is(err, ErrLockAlreadyHeld) {
			return nil, fail(op, other.key, other.side.name(other.client, lost)) // as Client.Lock, until it is unlocked
		}
		return old, fail(op, old.key, old.side.name(old.client, err))
	}
	locked = 1
	guard := old.client.keyedGuard(old.key)
	end, _ := guard.contexts()
	held, stop := endWith(ctx, end)
	defer stop()
	if err := p.verify(ctx, guard); err != nil {
		return nil, fail(op, old.key, err)
	}
	other.settings.waitUntil(deadline)
	err = other.client.lock(held, other.key, &other.settings)
	if err == nil {
		locked = 2
	}
	switch {
	case end.Err() != nil:
		return nil, fail(op, old.key, old.side.name(old.client, context.Cause(end))) //nolint:contextcheck // whichever ends first
	case err != nil:
		return other, fail(op, other.key, other.side.name(other.client, err))
	}
	return nil, nil
}

// keyedGuard returns the Guard of a key that is in the table of keyed locks, even if it was lost.
func (c *Client) keyedGuard(key string) *Guard {
	c.mu.Lock()
	defer c.mu.Unlock()
	h := c.keyed[key]
	if h == nil {
		return nil // Unlock was called meanwhile
	}
	return h.guard
}

// lostKey returns the error of a keyed lock that was lost, and not unlocked since.
func (c *Client) lostKey(key string) error {
	g := c.keyedGuard(key)
	if g == nil || !errors.Is(g.Err(), ErrOwnershipLost) {
		return nil
	}
	return g.Err()
}

// takeBackKey undoes a Lock whose caller does not get it.
func (c *Client) takeBackKey(key string) {
	g, err := c.lastUnlock(key)
	if g != nil && err == nil {
		g.takeBack()
	}
}

// Unlock releases what Lock or TryLock took: on new, and then on old. It returns the errors of both.
func (p *Pair) Unlock(ctx context.Context, key string) (err error) {
	if err := p.usable(); err != nil {
		return fail("unlock", key, err)
	}
	defer func() { // also if a hook of the backend's client panics
		old := p.clients[0].Unlock(ctx, key)
		if errors.Is(old, ErrLockNotHeld) && errors.Is(err, ErrLockNotHeld) {
			err = old // it was not locked
			return
		}
		err = errors.Join(sides[0].name(p.clients[0], old), sides[1].name(p.clients[1], err))
	}()
	return p.clients[1].Unlock(ctx, key)
}

// Tokens returns the fencing tokens of a key that the caller holds: those of the guards that ctx carries, such as the
// context of Do or Guards.Context, or of the owner that it names, also if one of them was lost since: a resource has to refuse it then. It
// returns zeros for a key that was not locked, or was unlocked. Fence a resource with both, each by itself: tokens of two backends cannot be compared. See
// docs/migration.md.
func (p *Pair) Tokens(ctx context.Context, key string) (old, new int64) {
	if p.usable() != nil {
		return 0, 0
	}
	m := markOf(ctx) // runs the user's code
	var tokens [2]int64
	for i, c := range p.clients {
		if g := c.lastGuard(m, key); g != nil && !errors.Is(g.Err(), ErrLockNotHeld) {
			tokens[i] = g.Token()
		}
	}
	return tokens[0], tokens[1]
}

// A KeyClaim is a claim and its key.
type KeyClaim struct {
	Key   string `json:"key"`
	Claim Claim  `json:"claim"`
}

// OldOnly returns the claims on old, on keys that start with prefix, that do not come from Both: those of processes
// that have not moved yet. It sees only what is held or waited for at this moment, and on Redis no locks of other
// libraries. So it can show that a move is not over, but not that it is. What package once has left to its lease is listed as well, though no
// process is left: keys of jobs for their hold, and their records, which are shared locks on keys that end in ":runs", for up to a
// day. The old Client needs WithAdmin. It stops after an error.
func (p *Pair) OldOnly(ctx context.Context, prefix string) iter.Seq2[KeyClaim, error] {
	return func(yield func(KeyClaim, error) bool) {
		if err := p.usable(); err != nil {
			yield(KeyClaim{}, fail("list", prefix, err))
			return
		}
		admin, err := p.clients[0].Admin()
		if err != nil {
			yield(KeyClaim{}, err)
			return
		}
		for key, err := range admin.List(ctx, prefix) {
			var claims []Claim
			if err == nil {
				claims, err = admin.Inspect(ctx, key)
			}
			if err != nil {
				yield(KeyClaim{}, err)
				return
			}
			for _, c := range claims {
				if !c.Both && !yield(KeyClaim{key, c}, nil) {
					return
				}
			}
		}
	}
}

// Close makes later calls return ErrClosed. It closes neither Client and releases nothing: locks that are held stay held
// until they are unlocked or their Clients are closed. Unlock can still be called.
func (p *Pair) Close() error {
	if p != nil {
		p.closed.Store(true)
	}
	return nil
}
