package sim

import (
	"context"
	"errors"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// drawMargin lets a user ask for a margin.
func (u *User) drawMargin(q *Request) {
	if u.Rest == nil || u.Rest.IntN(4) > 0 {
		return
	}
	q.Margin = time.Duration(u.Rest.Int64N(int64(q.TTL / 3)))
	q.opts = append(q.opts, dlock.WithMargin(q.Margin))
}

// margin is how much of a lease a holder does not use.
func (q *Request) margin(lease time.Duration) time.Duration { return max(lease/20, q.Margin) }

// sparing is that of one lock.
func (q *Request) sparing() time.Duration { return q.margin(q.TTL) + early }

// askHolder asks which claim holds a key.
func (u *User) askHolder(c *dlock.Client) {
	key := u.Key(u.Rest.IntN(2) == 0)
	limit, cancel := context.WithTimeout(context.Background(), answerIn)
	defer cancel()
	begun := u.Observer.Now()
	holder, held, err := c.Holder(limit, key)
	u.Holder(limit, c, key, begun, holder, held, err)
}

// toldHolder checks the answer of Holder: the store had the claim at some time during the call.
func (s *Simulation) toldHolder(limit context.Context, c *dlock.Client, key string, begun time.Duration, holder dlock.Claim, held bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, granted := s.begins[grant{key, holder.Token}]
	switch {
	case errors.Is(err, dlock.ErrClosed):
		if !s.closed[c] {
			s.failf("lie", "Holder says that its Client is closed, and it is open: %v", err)
		}
	case err != nil && s.calm:
		s.failf("lie", "Holder of %s fails, and nothing does: %v", key, err)
	case isContextError(err) && limit.Err() == nil:
		s.failf("lie", "Holder of %s says that its context has ended, and it has not: %v", key, err)
	case err == nil && held && s.Fences && (!granted || !s.wasStored(key, holder.Info.Purpose, begun)):
		s.failf("lie", "Holder of %s says that token %d of %q has it, and it had not since %v", key, holder.Token, holder.Info.Purpose, begun)
	}
}

// wasStored reports whether the store had a claim with a purpose at some time from a time on until now.
func (s *Simulation) wasStored(key, purpose string, from time.Duration) bool {
	samples := s.taken[key]
	for i := len(samples) - 1; i >= 0; i-- {
		for _, c := range samples[i].left {
			if c.purpose == purpose && c.until >= from {
				return true
			}
		}
		if samples[i].at < from {
			return false
		}
	}
	return false
}

// leaveToLease ends a hold without unlocking it.
func (u *User) leaveToLease(h *Hold, g *dlock.Guard) {
	u.Observer.Leaves(h)
	u.Left(h, g.Leave())
}

// left checks a Leave: the store keeps the lock, and from then on nothing releases it.
func (s *Simulation) left(h *Hold, err error) {
	kept := err != nil || !s.Fences || s.isHeld(h.Key, h.Token)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.logf("%s has left %s, token %d: %v", h.User, h.Key, h.Token, err)
	h.done, h.wasLeft, h.returned = true, true, s.Now() // also if it was lost: it is not released then
	s.lingers[h.grant()] = true
	if h.Context.Err() == nil {
		s.failf("context", "%s has left %s, token %d, and its context lives", h.User, h.Key, h.Token)
	}
	if err == nil {
		s.leftAlone[h.grant()] = true
	}
	switch {
	case err == nil && !kept && s.calm && !s.isEvicted(h) && !s.hasObservers(): // which may block for longer than the lease
		s.failf("left", "%s has left token %d of %s to its lease, and it is free", h.User, h.Token, h.Key)
	case err == nil, errors.Is(err, dlock.ErrClosed) && s.closed[h.client], errors.Is(err, dlock.ErrOwnershipLost) && h.lost():
	default:
		s.failf("left", "%s has left token %d of %s, and is told: %v", h.User, h.Token, h.Key, err)
	}
}

// extendAll extends several locks together.
func (u *User) extendAll(all *dlock.Guards, holds []*Hold) {
	if u.Rest == nil || u.Rest.IntN(2) == 0 {
		return
	}
	ttl := time.Duration(1+u.Rest.IntN(30)) * time.Second
	if u.Steady {
		ttl = holds[0].TTL
	}
	limit, cancel := context.WithTimeout(context.Background(), answerIn)
	defer cancel()
	lost := make([]bool, len(holds))
	for i, h := range holds {
		h.asked, lost[i] = true, h.lost()
	}
	begun := u.Observer.Now()
	err := all.Extend(limit, ttl)
	left, took := all.Remaining(), u.Observer.Now()-begun
	for i, h := range holds {
		u.extended(limit, h, lost[i], answerIn, errorOf(err, h.Key))
	}
	if err == nil && all.Context().Err() == nil && left < ttl-ttl/20-took-10*time.Millisecond {
		u.failf("extend", "%s has extended several keys by %v within %v, and has %v", u.Name, ttl, took, left)
	}
}

// extendAgain asks for the TTL of a lock after a shorter one was asked for, and not answered. Once that is answered, the lock
// has at least the shorter one.
func (u *User) extendAgain(h *Hold, g *dlock.Guard, shorter time.Duration, err error) {
	if u.Rest == nil || shorter >= h.TTL || !errors.Is(err, dlock.ErrUnknownOutcome) {
		return
	}
	limit, cancel := context.WithTimeout(context.Background(), answerIn)
	defer cancel()
	begun, lost := u.Observer.Now(), h.lost()
	err = g.Extend(limit, h.TTL)
	left, took := g.Remaining(), u.Observer.Now()-begun
	u.extended(limit, h, lost, answerIn, err)
	if err == nil {
		u.ExtendedAgain(h, shorter, took, left)
	}
}

// extendedAgain checks what is left after an Extend that was answered: at least the shortest TTL of those that were not.
func (s *Simulation) extendedAgain(h *Hold, shorter, took, left time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if least, some := s.least[s.claimOf(h)]; some {
		shorter = min(shorter, least)
	}
	if left < shorter-h.margin(shorter)-took-10*time.Millisecond && !s.mayBeGone(h) && !s.hasObservers() {
		s.failf("extend", "%s has extended %s, token %d, within %v after %v without an answer, and has %v", h.User, h.Key, h.Token, took, shorter, left)
	}
}

// reckon answers as a driver does that counts with a renewal which was not answered: it may arrive later than
// the one that was, and shorten the lease.
func (l *link) reckon(sent time.Time, refs []driver.Ref, states []driver.State) {
	l.sim.mu.Lock()
	defer l.sim.mu.Unlock()
	for i, r := range refs {
		least, some := l.sim.least[r.ID]
		switch {
		case i >= len(states) || states[i].Phase == driver.Unknown:
			if !some || r.TTL < least {
				l.sim.least[r.ID] = r.TTL
			}
		case some && least < r.TTL && states[i].Phase == driver.Held:
			states[i].Until, states[i].Lease = sent.Add(least), least
		}
	}
}
