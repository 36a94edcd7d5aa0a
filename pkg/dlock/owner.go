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
	if g := c.carried(ctx, key); g != nil || markOf(ctx) == nil {
		return g
	}
	c.mu.Lock()
	defer c.unlock()
	h := c.keyed[key]
	if h == nil || h.guard == nil || !h.ownedBy(ctx) || !h.guard.holds() || h.guard.claim.expired(c.now()) {
		return nil
	}
	return h.guard
}

// carried returns the Guard of key that ctx carries and this Client still holds.
func (c *Client) carried(ctx context.Context, key string) *Guard {
	for m := markOf(ctx); m != nil; m = m.outer {
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

// ownerIn is the mark that owns what is locked with ctx: the innermost of
// OwnerContext, else the innermost of a Guard, else none.
func ownerIn(ctx context.Context) *mark {
	innermost := markOf(ctx)
	for m := innermost; m != nil; m = m.outer {
		if m.guard == nil {
			return m
		}
	}
	return innermost
}

// ownedBy reports whether ctx carries the mark of whoever took h.
func (h *hold) ownedBy(ctx context.Context) bool {
	for m := markOf(ctx); m != nil; m = m.outer {
		if m == h.owner || (m.guard != nil && m.guard == h.guard) {
			return true
		}
	}
	return false
}
