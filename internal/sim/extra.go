package sim

import (
	"context"
	"errors"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// extra decides about what was added to the calls of users later.
func (u *User) extra(percent int) bool { return u.Extra != nil && u.Extra.IntN(100) < percent }

// drawLeast lets a brief user ask for a least hold. One without renewal is bounded by its TTL, so
// it is not asked for there.
func (u *User) drawLeast(q *Request) {
	if !u.Brief || q.Fixed || q.Lingers || u.Least.IntN(100) >= 30 {
		return
	}
	q.Lingers, q.MinHold = true, time.Duration(u.Least.Int64N(int64(3*time.Second)))
	q.opts = append(q.opts, dlock.WithMinHold(q.MinHold))
}

// leavesEarly reports whether a brief user has done its work before its least hold is over, for
// the most part long before.
func (u *User) leavesEarly(h *Hold) bool {
	if !u.Brief || h.MinHold == 0 || u.Least.IntN(100) >= 70 {
		return false
	}
	u.stay(h.Context, time.Duration(u.Least.Int64N(int64(h.MinHold/2)+1)))
	return true
}

// unlockForOther makes the Unlock that another user of the Client still owes.
func (u *User) unlockForOther(c *dlock.Client, key string) {
	if u.UnlocksForOther != nil {
		u.UnlocksForOther(c, key)
	}
	_ = c.Unlock(context.Background(), key)
}

// failf reports a promise that was not kept.
func (u *User) failf(kind, format string, args ...any) {
	if u.Wrong != nil {
		u.Wrong(kind, format, args...)
	}
}

// tryAgain locks once more on behalf of the owner, and unlocks that.
func (u *User) tryAgain(owner context.Context, c *dlock.Client, h *Hold) {
	again, err := c.TryLock(owner, h.Key)
	if again && err == nil {
		u.pause(u.upTo(time.Second))
		u.unlockInside(c, h)
		return
	}
	if h.Mode == driver.Exclusive && h.own.Err() == nil {
		u.failf("re-entry", "%s has %s, token %d, and is not let in again: %v", u.Name, h.Key, h.Token, err)
	}
}

// unlockInside is the Unlock that belongs to a re-entry. It must report a loss, and of
// nothing else.
func (u *User) unlockInside(c *dlock.Client, h *Hold) {
	lost := h.lost()
	err := c.Unlock(context.Background(), h.Key)
	if lost && err == nil {
		u.failf("lie", "%s has lost token %d of %s, and the inner Unlock says nothing of it", u.Name, h.Token, h.Key)
	}
	if err != nil && u.Ended != nil {
		u.Ended(h, "the inner Unlock", err)
	}
}

// doInside calls Do inside Do.
func (u *User) doInside(inner context.Context, g *dlock.Guard, outer *Hold) {
	q, ran, lost := &Request{client: outer.client, User: u.Name, Key: outer.Key}, false, false
	err := q.client.Do(inner, q.Key, func(held context.Context) error {
		ran = true
		h := u.hold(held, g, q, outer)
		u.stay(held, u.upTo(time.Second))
		u.Observer.Leaves(h)
		lost = outer.lost()
		return nil
	})
	reported := errors.Is(err, dlock.ErrOwnershipLost)
	switch {
	case ran && lost && !reported:
		u.failf("lie", "%s has lost token %d of %s, and the Do inside says: %v", u.Name, outer.Token, outer.Key, err)
	case ran && (err == nil || reported && outer.own.Err() != nil):
	case ran, err == nil, outer.Mode == driver.Exclusive && outer.own.Err() == nil:
		u.failf("re-entry", "%s has %s, token %d, and Do inside of it ran: %v, and returned: %v", u.Name, outer.Key, outer.Token, ran, err)
	}
}

// doAsOwner calls Do on behalf of an owner that has locked the key: it must not wait for
// itself.
func (u *User) doAsOwner(owner context.Context, c *dlock.Client, h *Hold) {
	ran, begun := false, u.Observer.Now()
	limit, cancel := context.WithTimeout(context.WithoutCancel(owner), time.Second)
	defer cancel()
	err := c.Do(limit, h.Key, func(context.Context) error { ran = true; return nil })
	if h.Context.Err() != nil { // lost meanwhile, and then it is another lock
		return
	}
	if ran != u.Config.EnableReentrant && h.Mode == 0 || u.Observer.Now() > begun || ran && err != nil {
		u.failf("re-entry", "%s has %s, token %d, and waited for itself: %v", u.Name, h.Key, h.Token, err)
	}
}

// askForMore calls Do inside Do, for a longer TTL than the outer one has.
func (u *User) askForMore(inner context.Context, c *dlock.Client, outer *Hold) {
	if !u.extra(30) {
		return
	}
	ran := false
	err := c.Do(inner, outer.Key, func(context.Context) error { ran = true; return nil }, dlock.WithTTL(outer.TTL+time.Minute))
	if ran && outer.Context.Err() == nil {
		u.failf("re-entry", "%s has %s for %v and was let in for a minute more: %v", u.Name, outer.Key, outer.TTL, err)
	}
}

// extend asks for another TTL, perhaps the one that there is.
func (u *User) extend(h *Hold, g *dlock.Guard, ttl time.Duration) {
	if u.extra(30) || u.Steady || ttl < 3*h.Margin { // which would leave nothing
		ttl = h.TTL
	}
	h.asked = true
	limit, cancel := context.WithTimeout(context.Background(), answerIn)
	defer cancel()
	begun, lost := u.Observer.Now(), h.lost()
	err := g.Extend(limit, ttl)
	left, took := g.Remaining(), u.Observer.Now()-begun
	u.extended(limit, h, lost, answerIn, err)
	u.extendAgain(h, g, ttl, err)
	if err == nil && h.Context.Err() == nil && left < ttl-h.margin(ttl)-took-10*time.Millisecond {
		u.failf("extend", "%s has extended %s, token %d, by %v within %v, and has %v", u.Name, h.Key, h.Token, ttl, took, left)
	}
}

// renewLast begins a renewal just before the lock is given back or handed over.
func (u *User) renewLast(h *Hold, g *dlock.Guard) {
	if !u.Eager || u.Config.LocalBatch == 0 || !u.extra(40) {
		return
	}
	h.asked = true
	limit, cancel := context.WithTimeout(context.Background(), time.Millisecond)
	defer cancel()
	lost := h.lost()
	u.extended(limit, h, lost, time.Millisecond, g.Extend(limit, h.TTL))
}

func (u *User) extended(limit context.Context, h *Hold, lost bool, long time.Duration, err error) {
	if u.Extended != nil {
		u.Extended(limit, h, lost, long, err)
	}
}
