package sim

import (
	"context"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// A lease is what a Client knows of one that the store has given it.
type lease struct {
	until time.Duration // from when the last call was sent that the store answered with it
	gone  bool          // the store has said that it is over
	late  bool          // some answer came when the Client may have given it up
}

// answered records what a Client was told of a claim by a call that it sent at a time.
func (s *Simulation) answered(sent time.Duration, r driver.Ref, st driver.State) {
	s.mu.Lock()
	defer s.mu.Unlock()
	g, known := s.grants[r.ID]
	if !known || g.key != r.Key {
		return
	}
	l := s.leases[g]
	switch st.Phase {
	case driver.Held:
		l.late = l.late || l.until > 0 && s.Now() >= l.until-sparing(r.TTL)
		l.until = max(l.until, sent+r.TTL)
		if !st.Until.IsZero() { // the driver may have sent it later
			l.until = max(l.until, st.Until.Sub(s.begin))
		}
	case driver.Gone:
		l.gone = true
	default:
	}
	s.leases[g] = l
}

// renewed records the answer to a renewal. A Client that is told that the store does not have a claim must end what is held by it at once.
func (s *Simulation) renewed(sent time.Duration, r driver.Ref, st driver.State) {
	s.answered(sent, r, st)
	if st.Phase != driver.Gone {
		return
	}
	s.Go(func() {
		pause(toldGrace)
		s.mu.Lock()
		defer s.mu.Unlock()
		s.told[r.ID] = true
		for _, h := range s.holds[r.Key] {
			if h.live() && s.claimOf(h) == r.ID {
				s.failf("deaf", "%s has token %d of %s, and its Client was told that the store does not have it", h.User, h.Token, h.Key)
			}
		}
	})
}

// toldGrace is how long a Client may take to end a lock that it was told is gone. Nothing that it waits for takes virtual time.
const toldGrace = time.Millisecond

// claimOf returns the ID of the claim that a hold has, "" if it is not known. A hold that was handed over has a token after that of
// the grant.
func (s *Simulation) claimOf(h *Hold) string { return s.begins[s.grantOf(h)] }

// grantOf returns the grant that a hold has.
func (s *Simulation) grantOf(h *Hold) (of grant) {
	for g := range s.begins {
		if g.key == h.Key && g.token <= h.Token && g.token > of.token {
			of = g
		}
	}
	return of
}

// sparing is how much of a lease a Client may give up: its margin, and what separates the
// grant, which a push may report, from the call that is answered next.
func sparing(ttl time.Duration) time.Duration { return ttl/20 + early }

// checkLoss fails if a lock is lost although the store has answered its renewals in time. Holds
// that nothing has extended or handed over are judged, if no machine slept.
func (s *Simulation) checkLoss(h *Hold) {
	if h.Inside != nil || !h.Keeps || h.asked || !h.lost() || s.batches || s.isEvicted(h) || len(s.sleeps) > 0 || s.hasObservers() {
		return
	}
	l, known := s.leases[h.grant()]
	at := time.Duration(h.endedAt.Load())
	if at == 0 { // in this instant
		at = s.Now()
	}
	if known && !l.gone && at < l.until-h.sparing() {
		s.failf("false loss", "%s lost token %d of %s at %v, and had been told that it has it until %v", h.User, h.Token, h.Key, at, l.until)
	}
}

// checkBelief fails if a holder believes in its lock for longer than the store keeps it.
func (s *Simulation) checkBelief(h *Hold) {
	if !s.Fences || h.own.Err() != nil { // a redlock is kept by several stores
		return
	}
	left := h.guard.Remaining()
	if left <= 0 || left > time.Hour { // without a lease
		return
	}
	claims := s.store.Claims(h.Key)
	s.mu.Lock()
	defer s.mu.Unlock()
	if time.Since(s.lastWake) < wakeGrace {
		return
	}
	if s.isEvicted(h) {
		s.checkEvictedBelief(h, left)
		return
	}
	for _, c := range claims {
		last := max(c.Token, c.LastToken)
		if c.Phase == driver.Held && c.Token <= h.Token && h.Token <= last && c.Remaining+rounding < left+h.Margin {
			s.failf("belief", "%s believes in token %d of %s for %v more, and the store keeps it for %v", h.User, h.Token, h.Key, left, c.Remaining)
		}
	}
}

// checkEvictedBelief fails if a holder whose lock was evicted believes in it for longer than the last lease that it was told of.
func (s *Simulation) checkEvictedBelief(h *Hold, left time.Duration) {
	l, known := s.leases[s.grantOf(h)]
	if known && l.until > 0 && s.Now()+left > l.until+rounding {
		s.failf("belief", "%s was evicted, and believes in token %d of %s for %v more, %v longer than its lease", h.User, h.Token, h.Key, left, s.Now()+left-l.until)
	}
}

// rounding is how exactly a store says how long a claim is kept.
const rounding = 2 * time.Millisecond

// checkReleased fails if the store has a lock of which Unlock has said that it is released. What
// is handed over inside a process, or is kept for a least hold, stays; Do does not say.
func (s *Simulation) checkReleased(h *Hold) {
	if h.Inside != nil || h.verb == verbDo || s.batches || h.Lingers || !s.Fences {
		return
	}
	if !h.Async || s.local {
		s.stillHeld(h.Key, h.Token, "kept", "its Unlock has returned nil")
		return
	}
	if s.calm && s.Exact && !s.hasObservers() {
		s.Go(func() {
			pause(s.roundTrip() + rounding)
			s.checkFreed(h, "its Unlock has returned, and nothing fails")
		})
	}
}

// checkOverstay fails if a lock lives on after its longest hold.
func (s *Simulation) checkOverstay(h *Hold) {
	if h.MaxHold > 0 && h.Inside == nil && h.own.Err() == nil && s.Now() > h.entered+h.MaxHold+rounding {
		s.failf("overstayed", "%s has token %d of %s since %v, and may have it for %v", h.User, h.Token, h.Key, h.entered, h.MaxHold)
	}
}

// checkLeast sees to it that a lock of any mode is stored for the least hold, and not longer than asked for if its
// user has unlocked it and nothing fails.
func (s *Simulation) checkLeast(h *Hold) {
	if !h.Lingers || h.Inside != nil || !s.calm || s.hasObservers() {
		return
	}
	until := h.entered + h.MinHold
	s.Go(func() {
		pause(until - s.Now() - rounding)
		s.mu.Lock()
		spared, left := s.isEvicted(h) || h.lost() || s.closed[h.client], h.done
		s.mu.Unlock()
		if !spared && !s.isHeld(h.Key, h.Token) {
			s.wrong("least hold", "%s had token %d of %s from %v on for at least %v, and it is free", h.User, h.Token, h.Key, h.entered, h.MinHold)
		}
		pause(2 * rounding)
		if left && s.Exact {
			pause(s.roundTrip())
			s.checkFreed(h, "its least hold is over")
			return
		}
		pause(sweeping)
		s.mu.Lock()
		left = h.done && h.returned+sweeping < s.Now()
		s.mu.Unlock()
		if left {
			s.checkFreed(h, "its least hold was over long ago")
		}
	})
}

// roundTrip is the longest that a call and its answer take if nothing fails.
func (s *Simulation) roundTrip() time.Duration { return 2 * (time.Millisecond + s.network.delay) }

// checkFreed fails if the store has a lock that was released, unless Close has left it there.
func (s *Simulation) checkFreed(h *Hold, why string) {
	s.mu.Lock()
	closed := s.closed[h.client]
	s.mu.Unlock()
	if !closed {
		s.stillHeld(h.Key, h.Token, "kept", why)
	}
}

func (s *Simulation) isHeld(key string, token int64) bool {
	for _, c := range s.store.Claims(key) {
		if c.Phase == driver.Held && c.Token == token {
			return true
		}
	}
	return false
}

// checkUnlockTime fails if an Unlock returns long after its context has ended. One whose context
// is over is tried all the same, for a third of the lease, which Extend may have changed, and no
// longer than two seconds.
func (s *Simulation) checkUnlockTime(h *Hold) {
	ended := time.Duration(h.ended.Load())
	if h.Inside != nil || h.verb == verbDo || ended == 0 || s.hasObservers() {
		return
	}
	tried := min(h.TTL/3, 2*time.Second)
	if h.asked {
		tried = 2 * time.Second
	}
	if s.Now() > max(ended, h.leftAt+tried)+grace && h.leftAt != 0 && !h.dawdled {
		s.failf("late", "%s unlocked token %d of %s until %v, and its context had ended at %v", h.User, h.Token, h.Key, s.Now(), ended)
	}
}

func (w *watched) Acquire(ctx context.Context, r driver.Request) (driver.State, error) {
	sent := w.sim.Now()
	st, err := w.Driver.Acquire(ctx, r)
	if err == nil {
		w.sim.answered(sent, r.Ref, st)
	}
	return st, err
}

func (w *watched) Renew(ctx context.Context, refs []driver.Ref) ([]driver.State, error) {
	sent, asked := w.sim.Now(), append([]driver.Ref(nil), refs...)
	states, err := w.Driver.Renew(ctx, refs)
	for i, st := range states { // an error is only of those that are Unknown
		w.sim.renewed(sent, asked[i], st)
	}
	return states, err
}
