package dlock

import "context"

// A mark in a context identifies the owner for which a call is made. Marks form a chain,
// innermost first: the context of a Guard that was acquired under another Guard's context
// has marks of both.
type mark struct {
	guard *Guard // nil for a mark of OwnerContext
	owner *owner // of OwnerContext
	outer *mark
}

// An owner is identified by its address.
type owner struct{ _ byte }

type markKey struct{}

// OwnerContext returns a context that names a new owner. With Config.EnableReentrant, a key
// that was locked with it can be locked again with it or with a context derived from it. The
// context of a Guard, and that of Client.Do, also names an owner while the lock is held.
func OwnerContext(ctx context.Context) context.Context {
	if ctx == nil {
		ctx = context.Background()
	}
	return context.WithValue(ctx, markKey{}, &mark{owner: &owner{}, outer: markOf(ctx).withoutEnded()})
}

// FromContext returns the innermost Guard whose context ctx is derived from.
func FromContext(ctx context.Context) (*Guard, bool) {
	for m := markOf(ctx); m != nil; m = m.outer {
		if m.guard != nil {
			return m.guard, true
		}
	}
	return nil, false
}

// withoutEnded returns the chain without the marks of guards that have ended. It locks mu of their
// Clients, so it must not run under mu.
func (m *mark) withoutEnded() *mark {
	if m == nil {
		return nil
	}
	outer := m.outer.withoutEnded()
	switch {
	case m.guard != nil && !m.guard.claim.client.holds(m.guard):
		return outer
	case outer == m.outer:
		return m
	}
	return &mark{m.guard, m.owner, outer}
}

// is reports whether two marks identify the same Guard or the same owner.
func (m *mark) is(o *mark) bool {
	return o != nil && m.guard == o.guard && m.owner == o.owner
}

func markOf(ctx context.Context) *mark {
	if ctx == nil {
		return nil
	}
	m, _ := ctx.Value(markKey{}).(*mark)
	return m
}

// guardFor returns the Guard with which the owner that ctx names holds key: a Guard that ctx
// carries, or the Guard of a keyed lock with the same owner.
func (c *Client) guardFor(ctx context.Context, key string) *Guard {
	m := markOf(ctx) // runs the user's code, so not under mu
	if g := c.guardIn(m, key); g != nil || m == nil {
		return g
	}
	c.mu.Lock()
	defer c.unlock()
	h := c.keyed[key]
	if h == nil || h.guard == nil || !h.ownedBy(m) || !h.guard.holds() || h.guard.claim.expired(c.now()) {
		return nil
	}
	return h.guard
}

// guardIn returns the Guard of key among the marks of a context, if this Client still holds
// it.
func (c *Client) guardIn(m *mark, key string) *Guard {
	for ; m != nil; m = m.outer {
		if g := m.guard; g != nil && g.claim.client == c && g.claim.key == key && c.holds(g) {
			return g
		}
	}
	return nil
}

// lastGuard returns the Guard of key among the marks of a context, or of their owner, even if it was lost.
func (c *Client) lastGuard(m *mark, key string) *Guard {
	for in := m; in != nil; in = in.outer {
		if g := in.guard; g != nil && g.claim.client == c && g.claim.key == key {
			return g
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if h := c.keyed[key]; m != nil && h != nil && h.ownedBy(m) {
		return h.guard
	}
	return nil
}

func (c *Client) holds(g *Guard) bool {
	c.mu.Lock()
	defer c.unlock()
	return g.holds() && !g.claim.expired(c.now())
}

// ownerIn returns the mark that owns what is locked with a context: the innermost mark of
// OwnerContext, otherwise the innermost mark of a Guard, otherwise nil.
func ownerIn(innermost *mark) *mark {
	for m := innermost; m != nil; m = m.outer {
		if m.guard == nil {
			return m
		}
	}
	return innermost
}

// ownedBy reports whether the marks of a context include the owner of h, or its Guard.
func (h *keyedLock) ownedBy(m *mark) bool {
	for ; m != nil; m = m.outer {
		if m.is(h.owner) || (m.guard != nil && m.guard == h.guard) {
			return true
		}
	}
	return false
}
