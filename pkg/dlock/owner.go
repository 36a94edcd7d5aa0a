package dlock

import "context"

// A mark in a context says on whose behalf a call is made. Marks form a chain,
// innermost first: a Guard taken under another Guard's context is marked with
// both.
type mark struct {
	guard *Guard // nil for a mark of OwnerContext
	outer *mark
}

type markKey struct{}

// OwnerContext returns a context that names a new owner. With
// Config.EnableReentrant, a keyed lock that was taken with it can be taken again
// with it or with a context made from it. The context of a Guard, and that of
// Client.Do, names an owner as well.
func OwnerContext(ctx context.Context) context.Context {
	if ctx == nil {
		ctx = context.Background()
	}
	return marked(ctx, nil)
}

// FromContext returns the innermost Guard whose context ctx is made from.
func FromContext(ctx context.Context) (*Guard, bool) {
	for m := markOf(ctx); m != nil; m = m.outer {
		if m.guard != nil {
			return m.guard, true
		}
	}
	return nil, false
}

func marked(ctx context.Context, g *Guard) context.Context {
	return context.WithValue(ctx, markKey{}, &mark{g, markOf(ctx)})
}

func markOf(ctx context.Context) *mark {
	if ctx == nil {
		return nil
	}
	m, _ := ctx.Value(markKey{}).(*mark)
	return m
}

// holding returns the Guard of key that this Client holds on behalf of ctx: one that
// ctx carries, or the one of a keyed lock that ctx owns.
func (c *Client) holding(ctx context.Context, key string) *Guard {
	m := markOf(ctx) // the user's code, and so not under mu
	if g := c.carried(m, key); g != nil || m == nil {
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

// carried returns the Guard of key among the marks of a context that this Client still
// holds.
func (c *Client) carried(m *mark, key string) *Guard {
	for ; m != nil; m = m.outer {
		if g := m.guard; g != nil && g.claim.client == c && g.claim.key == key && c.holds(g) {
			return g
		}
	}
	return nil
}

func (c *Client) holds(g *Guard) bool {
	c.mu.Lock()
	defer c.unlock()
	return g.holds() && !g.claim.expired(c.now())
}

// ownerIn is which of the marks of a context owns what is locked with it: the innermost of
// OwnerContext, else the innermost of a Guard, else none.
func ownerIn(innermost *mark) *mark {
	for m := innermost; m != nil; m = m.outer {
		if m.guard == nil {
			return m
		}
	}
	return innermost
}

// ownedBy reports whether the mark of whoever took h is among those of a context.
func (h *hold) ownedBy(m *mark) bool {
	for ; m != nil; m = m.outer {
		if m == h.owner || (m.guard != nil && m.guard == h.guard) {
			return true
		}
	}
	return false
}
