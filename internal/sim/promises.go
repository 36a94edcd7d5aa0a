package sim

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// What is promised of times, and of what is left behind.
const (
	// grace is how much later than its end a call may return. It may look who has the
	// lock, and wait for the release of its claim.
	grace = 600 * time.Millisecond
	// taking is how long a Client may take to deliver or to give back what was granted.
	taking = time.Second
	// dawdle is how long a user may take to unlock what it has lost, sweeping how long
	// after the end of a longest hold its key may be taken: the margin of the longest
	// lease, and a call.
	sweeping = 4 * time.Second
	dawdle   = 6 * time.Second
)

// wrong is called by users. An Extend is only exact if nothing fails, and not on redlock, which
// allows for clocks that drift. It is not judged either where Clients read the real clock of
// suspends, which moves with the real time that a run takes.
func (s *Simulation) wrong(kind, format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if kind == "extend" && (!s.calm || !s.Sleeps || !s.Fences || s.hasObservers()) {
		return
	}
	s.failf(kind, format, args...)
}

// caught is for a user whose call has panicked.
func (s *Simulation) caught(user string) {
	v := recover()
	if v == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failf("panic", "a call of %s panicked: %v", user, v)
}

// checkReturn fails if a call that got nothing has returned late. A logger that blocks is
// no fault of ours.
func (s *Simulation) checkReturn(q *Request) {
	ended := time.Duration(q.ended.Load())
	switch now := s.Now(); {
	case s.hasObservers():
	case ended != 0 && now > ended+grace:
		s.failf("late", "%s returned at %v, and its context had ended at %v", q.User, now, ended)
	case q.Wait > 0 && now > q.Asked+q.Wait+grace:
		s.failf("late", "%s waited from %v to %v, and had %v", q.User, q.Asked, now, q.Wait)
	}
}

// Attempts is called by a Store for every call that was sent to it. That of a call for a lock
// contains its purpose.
func (s *Simulation) Attempts(call string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.attempts = append(s.attempts, call)
}

// checkOutcome checks what an error says of what is stored: nothing can be of a call that
// was never sent, and if something is, the outcome is not "unavailable".
func (s *Simulation) checkOutcome(q *Request, err error) {
	if q.Purpose == shared || len(s.attempts) == 0 {
		return
	}
	sent := slices.ContainsFunc(s.attempts, func(call string) bool { return strings.Contains(call, q.Purpose+`"`) })
	unknown := errors.Is(err, dlock.ErrUnknownOutcome)
	if unknown && !sent {
		s.failf("lie", "%s was told that the outcome is unknown, and nothing was sent: %v", q.User, err)
	}
	samples := s.taken[q.Key]
	if unknown || !errors.Is(err, dlock.ErrUnavailable) || len(samples) == 0 {
		return
	}
	for _, c := range samples[len(samples)-1].left {
		if c.purpose == q.Purpose && c.until > s.Now() {
			s.failf("lie", "%s was told that the store is unavailable, and it has the claim: %v", q.User, err)
		}
	}
}

// checkPatience fails if a lock is given to a call whose context has ended.
func (s *Simulation) checkPatience(h *Hold) {
	ended := time.Duration(h.ended.Load())
	if ended != 0 && ended < s.Now() && !s.hasObservers() {
		s.failf("late", "%s has %s, token %d, and its context had ended at %v", h.User, h.Key, h.Token, ended)
	}
}

// checkEnd checks a lock that is about to be unlocked or was lost. One that is not to be
// renewed has its TTL from when it was granted or, if that ended a wait, from a call within the
// heartbeat that follows.
func (s *Simulation) checkEnd(h *Hold) {
	if h.Fixed && !h.asked && h.Inside == nil && h.Context.Err() == nil && s.Now() > h.entered+driver.Heartbeat(h.TTL)+h.TTL {
		s.failf("renewed", "%s has token %d of %s since %v, for %v and not to be renewed", h.User, h.Token, h.Key, h.entered, h.TTL)
	}
	lost := errors.Is(context.Cause(h.Context), dlock.ErrOwnershipLost)
	if h.MaxHold == 0 || !lost || !s.calm || s.hasObservers() || h.Inside != nil {
		return
	}
	if s.Now() < h.entered+h.MaxHold {
		return // lost with its lease, which an Extend that came too late may have lengthened
	}
	s.Go(func() {
		pause(sweeping)
		s.mu.Lock()
		left := h.wasLeft
		s.mu.Unlock()
		if left { // Leave does not release a lost lock either: its lease ends it
			return
		}
		s.stillHeld(h.Key, h.Token, "kept", "its longest hold was over long ago")
	})
}

// checkDelivered checks that a grant which was delivered to a Client is used or released. The second
// grant of a claim is not judged: if the first was lost, the Client ignores it for a lease.
func (s *Simulation) checkDelivered(ev driver.Event, closed <-chan struct{}) {
	if ev.State.Phase != driver.Held || !s.clean || s.hasObservers() {
		return
	}
	s.Go(func() {
		select {
		case <-time.After(taking):
		case <-closed:
			return
		}
		s.mu.Lock()
		taken := s.firstGrants[ev.ID] != ev.State.Token
		for _, h := range s.holds[ev.Key] {
			taken = taken || h.Token >= ev.State.Token && h.Token < s.nextGrant(grant{ev.Key, ev.State.Token})
		}
		for q := range s.waiting { // the call of this claim keeps it while it waits for another key
			taken = taken || q.Together && q.Key == ev.Key && q.Purpose == s.purposes[ev.ID]
		}
		s.mu.Unlock()
		if !taken {
			s.stillHeld(ev.Key, ev.State.Token, "stray", "its Client knows nothing of it")
		}
	})
}

// stillHeld fails if the store has a lock that should be free.
func (s *Simulation) stillHeld(key string, token int64, kind, why string) {
	for _, c := range s.store.Claims(key) {
		if c.Phase == driver.Held && c.Token == token {
			s.mu.Lock()
			s.failf(kind, "%s, token %d, is still held, and %s", key, token, why)
			s.mu.Unlock()
		}
	}
}
