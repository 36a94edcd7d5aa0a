package sim

import (
	"context"
	"errors"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock"
)

// extra decides about what was added to the calls of users later.
func (u *User) extra(percent int) bool { return u.Extra != nil && u.Extra.IntN(100) < percent }

// unlockInside is the Unlock that belongs to a re-entry. It must tell of a loss.
func (u *User) unlockInside(c *dlock.Client, h *Hold) {
	lost := errors.Is(context.Cause(h.Context), dlock.ErrOwnershipLost)
	err := c.Unlock(context.Background(), h.Key)
	if lost && err == nil && u.Wrong != nil {
		u.Wrong("lie", "%s has lost token %d of %s, and the inner Unlock says nothing of it", u.Name, h.Token, h.Key)
	}
}

// doAsOwner calls Do on behalf of an owner that has locked the key: it must not wait for
// itself.
func (u *User) doAsOwner(owner context.Context, c *dlock.Client, h *Hold) {
	ran, begun := false, u.Observer.Now()
	limit, cancel := context.WithTimeout(context.WithoutCancel(owner), time.Second)
	defer cancel()
	err := c.Do(limit, h.Key, func(context.Context) error { ran = true; return nil })
	if h.Context.Err() != nil || u.Wrong == nil { // lost meanwhile, and then it is another lock
		return
	}
	if ran != u.Config.EnableReentrant && h.Mode == 0 || u.Observer.Now() > begun {
		u.Wrong("re-entry", "%s has %s, token %d, and waited for itself: %v", u.Name, h.Key, h.Token, err)
	}
}

// askForMore calls Do inside Do, for a longer TTL than the outer one has.
func (u *User) askForMore(inner context.Context, c *dlock.Client, outer *Hold) {
	if !u.extra(30) {
		return
	}
	ran := false
	err := c.Do(inner, outer.Key, func(context.Context) error { ran = true; return nil }, dlock.WithTTL(outer.TTL+time.Minute))
	if ran && outer.Context.Err() == nil && u.Wrong != nil {
		u.Wrong("re-entry", "%s has %s for %v and was let in for a minute more: %v", u.Name, outer.Key, outer.TTL, err)
	}
}

// extend asks for another TTL, perhaps the one that there is.
func (u *User) extend(h *Hold, g *dlock.Guard, ttl time.Duration) {
	if u.extra(30) || u.Steady {
		ttl = h.TTL
	}
	h.asked = true
	limit, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	begun := u.Observer.Now()
	err := g.Extend(limit, ttl)
	left, took := g.Remaining(), u.Observer.Now()-begun
	if err == nil && u.Wrong != nil && h.Context.Err() == nil && left < ttl-ttl/20-took-10*time.Millisecond {
		u.Wrong("extend", "%s has extended %s, token %d, by %v within %v, and has %v", u.Name, h.Key, h.Token, ttl, took, left)
	}
}

// renewLast begins a renewal just before the lock is given back or handed on.
func (u *User) renewLast(h *Hold, g *dlock.Guard) {
	if !u.Eager || u.Config.LocalBatch == 0 || !u.extra(40) {
		return
	}
	h.asked = true
	limit, cancel := context.WithTimeout(context.Background(), time.Millisecond)
	defer cancel()
	_ = g.Extend(limit, h.TTL)
}
