package sim

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// A grant is what the store has given to a claim.
type grant struct {
	key   string
	token int64
}

// A sample is which claims the store had at a time.
type sample struct {
	at   time.Duration
	left []stored
}

type stored struct {
	purpose string
	until   time.Duration
}

// wakeGrace is how long after a suspend guards may take to learn of it.
const wakeGrace = 600 * time.Millisecond

// grant returns what the store has given to a hold.
func (h *Hold) grant() grant { return grant{h.Key, h.Token} }

// live reports whether the user may believe in its hold.
func (h *Hold) live() bool { return !h.over && h.Context.Err() == nil }

// fits reports whether two holds may exist at one time.
func (h *Hold) fits(o *Hold) bool {
	for i := h.Inside; i != nil; i = i.Inside {
		if i == o {
			return true
		}
	}
	return h.Mode != driver.Exclusive && o.Mode == h.Mode && o.Limit == h.Limit
}

// Asks records who waits, since when.
func (s *Simulation) Asks(q *Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiting[q] = 0
	s.callers[q.Purpose] = q.client
	s.count(q, false)
	if q.byKey() {
		s.byKey[keyed{q.client, q.Key}] = append(s.byKey[keyed{q.client, q.Key}], q)
	}
}

// Enters checks a lock that a user has from now on.
func (s *Simulation) Enters(h *Hold) {
	s.checkBelief(h)
	s.checkLeast(h)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.logf("%s has %s, %s, token %d", h.User, h.Key, h.Mode, h.Token)
	if h.Inside == nil {
		s.count(h.Request, true)
	}
	s.lingers[h.grant()] = s.lingers[h.grant()] || h.Lingers
	if s.hasObservers() && h.Context.Err() != nil { // the logger has held its user up until it was lost
		delete(s.waiting, h.Request)
		return
	}
	if h.Inside == nil {
		s.checkToken(h)
		s.checkOrder(h)
		s.checkPatience(h)
	}
	together := 0
	for _, o := range s.holds[h.Key] {
		if !o.live() {
			continue
		}
		if o.Mode == driver.Permit && h.Inside == nil && !s.isUntold(o) { // one that was evicted takes no place
			together++
		}
		if !h.fits(o) {
			s.conflict(h, o)
		}
	}
	if h.Mode == driver.Permit && together >= h.Limit && time.Since(s.lastWake) > wakeGrace && !s.isUntold(h) {
		s.failf("overlap", "%s has permit %d of %d of %s", h.User, together+1, h.Limit, h.Key)
	}
	s.holds[h.Key] = append(s.holds[h.Key], h)
}

func (s *Simulation) checkToken(h *Hold) {
	before := s.lastAlone[h.Key] // tokens of those that have a key together come in any order
	if h.Mode == driver.Exclusive {
		before = s.last[h.Key]
	}
	if h.Token <= before && !s.isEvicted(h) {
		s.failf("token", "%s has token %d of %s after %d", h.User, h.Token, h.Key, before)
	}
	s.last[h.Key] = max(s.last[h.Key], h.Token)
	if h.Mode == driver.Exclusive {
		s.lastAlone[h.Key] = max(s.lastAlone[h.Key], h.Token)
	}
}

// maxOvertaken is how many later requests may be served first when nothing fails: those of
// one turn of another process, and a few that the network reordered.
const maxOvertaken = 24

// maxOvertakenAlone is the same for a key that is only locked exclusively, where no process
// hands locks on: a waiter that the server does not hear of is passed over once.
const maxOvertakenAlone = 3

// checkOrder fails if others that asked much later are served before a waiter again and
// again. Only calls that wait until they are served are judged, and of several keys the smallest: the others are not waited for
// from the beginning.
func (s *Simulation) checkOrder(h *Hold) {
	delete(s.waiting, h.Request)
	if !s.calm || !s.FIFO {
		return
	}
	for q, n := range s.waiting {
		later := q.Together && q.Key != slices.Min(Keys())
		if q.Key != h.Key || q.HasWait || later || h.Asked < q.Asked+time.Second {
			continue
		}
		s.waiting[q] = n + 1
		alone := !s.batches && h.Key == plainKey && !s.hasObservers()
		if n+1 > maxOvertaken || alone && n+1 > maxOvertakenAlone {
			s.failf("starved", "%s waits for %s since %v, and %d that came later were served", q.User, q.Key, q.Asked, n+1)
			delete(s.waiting, q)
		}
	}
}

// isEvicted reports whether a hold was evicted.
func (s *Simulation) isEvicted(h *Hold) bool {
	_, evicted := s.evictions[h.grant()]
	return evicted
}

// isUntold reports whether a hold was evicted, and its Client was not told.
func (s *Simulation) isUntold(h *Hold) bool { return s.isEvicted(h) && !s.told[s.claimOf(h)] }

// conflict is for two holds that exclude each other. After a suspend the first may not
// have learned of its end yet; after an eviction it may not until its Client is told, unless
// the same Client was granted the key.
func (s *Simulation) conflict(h, o *Hold) {
	if (s.isUntold(o) || s.isUntold(h)) && o.Client != h.Client {
		return
	}
	if time.Since(s.lastWake) > wakeGrace {
		s.failf("overlap", "%s has token %d of %s while %s has token %d", h.User, h.Token, h.Key, o.User, o.Token)
		return
	}
	s.Go(func() {
		pause(wakeGrace)
		s.mu.Lock()
		defer s.mu.Unlock()
		if h.live() && o.live() && !s.isEvicted(o) {
			s.failf("overlap", "%s has token %d of %s, and after the wake-up %s has token %d", h.User, h.Token, h.Key, o.User, o.Token)
		}
	})
}

// Leaves records that a user is about to unlock or was told that its lock is lost, and
// checks that nothing was lost that could not be.
func (s *Simulation) Leaves(h *Hold) {
	s.checkBelief(h)
	left := h.guard.Remaining()
	s.mu.Lock()
	defer s.mu.Unlock()
	h.over = true
	cause := context.Cause(h.Context)
	s.logf("%s leaves %s, token %d: %v", h.User, h.Key, h.Token, cause)
	if s.calm && h.Keeps && h.Inside == nil && !s.isEvicted(h) && h.isLoss(cause) {
		s.failf("false loss", "%s lost token %d of %s, and nothing fails: %v", h.User, h.Token, h.Key, cause)
	}
	h.leftAt, h.validUntil = s.Now(), s.Now()+left
	s.checkEnd(h)
	s.checkEarly(h)
	s.checkLoss(h)
	s.checkOverstay(h)
}

// Unlocked checks that the context has ended, and that what the call says is true.
func (s *Simulation) Unlocked(h *Hold, err error) {
	if err == nil {
		s.checkReleased(h)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.logf("%s has unlocked %s, token %d: %v", h.User, h.Key, h.Token, err)
	h.done, h.returned = true, s.Now()
	s.checkUnlock(h, err)
	s.checkUnlockTime(h)
	if h.Context.Err() == nil {
		s.failf("context", "%s has unlocked %s, token %d, and its context lives", h.User, h.Key, h.Token)
	}
}

// Look records what is stored on a key. A Store calls it after every call that may have
// changed that.
func (s *Simulation) Look(key string) {
	claims := s.store.Claims(key)
	one := sample{at: s.Now()}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range claims {
		one.left = append(one.left, stored{c.Info.Purpose, one.at + c.Remaining})
		if c.Phase == driver.Held {
			s.grants[c.ID], s.purposes[c.ID] = grant{key, c.Token}, c.Info.Purpose
			s.begins[grant{key, c.Token}] = c.ID
			if s.firstGrants[c.ID] == 0 {
				s.firstGrants[c.ID] = c.Token
			}
		}
	}
	s.taken[key] = append(s.taken[key], one)
}

// takenByOther reports whether the store had a claim of another call on a key, at some time
// from a time on until now, or another call has not unlocked it yet.
func (s *Simulation) takenByOther(key, purpose string, from time.Duration) bool {
	for _, h := range s.holds[key] {
		released := h.done && h.returned < from         // until then its Client may not know that the store has let go
		if h.live() || (!released && h.Inside == nil) { // live: evicted, and not notified yet
			return true
		}
	}
	samples := s.taken[key]
	for i := len(samples) - 1; i >= 0; i-- {
		for _, c := range samples[i].left {
			if c.purpose != purpose && c.until >= from {
				return true
			}
		}
		if samples[i].at < from {
			return false
		}
	}
	return false
}

// isBehind reports whether another call of the Client of a request waits for its key. Redlock has no
// claim of such a call on its servers between two attempts.
func (s *Simulation) isBehind(q *Request) bool {
	for o := range s.waiting {
		if o.client == q.client && o.Key == q.Key && o != q {
			return true
		}
	}
	return false
}

// releases checks, when a claim is given back, that no user believes in it any more.
func (s *Simulation) releases(r driver.Ref) {
	s.mu.Lock()
	defer s.mu.Unlock()
	g, ok := s.grants[r.ID]
	if !ok || g.key != r.Key {
		return
	}
	if s.leftAlone[g] && s.Now() < s.leases[g].until { // a push of its grant that comes after the lease is answered by a release
		s.failf("release", "token %d of %s is given back, and was left to its lease", g.token, r.Key)
	}
	next := s.nextGrant(g)
	for _, h := range s.holds[r.Key] {
		if h.Token >= g.token && h.Token < next && h.Context.Err() == nil && h.Inside == nil {
			s.failf("release", "token %d of %s is given back while the context of %s lives", g.token, r.Key, h.User)
		}
	}
}

// nextGrant is the token of the grant of a key that follows one, or one beyond all.
func (s *Simulation) nextGrant(g grant) int64 {
	next := int64(1) << 62
	for o := range s.begins {
		if o.key == g.key && o.token > g.token {
			next = min(next, o.token)
		}
	}
	return next
}

// Refused checks the error of a call that did not get a lock.
func (s *Simulation) Refused(q *Request, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.waiting, q)
	s.logf("%s does not get %s: %v", q.User, q.Key, err)
	over := q.over()
	q.returned = s.Now()
	s.checkReturn(q)
	s.checkRefusal(q, err)
	s.checkOutcome(q, err)
	switch {
	case errors.Is(err, dlock.ErrLockHeldByOther) && !s.takenByOther(q.Key, q.Purpose, q.Asked) && !s.isBehind(q):
		s.failf("lie", "%s was told that %s is held, and no other had it since %v: %v", q.User, q.Key, q.Asked, err)
	case (errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)) && !over:
		s.failf("lie", "%s was told that its context is over, and it is not: %v", q.User, err)
	case s.calm && !over && (errors.Is(err, dlock.ErrUnavailable) || errors.Is(err, dlock.ErrDenied) || errors.Is(err, dlock.ErrNotReady)):
		s.failf("lie", "%s was told that the store fails, and nothing does: %v", q.User, err)
	}
}

// evict takes a lock from whoever has it.
func (s *Simulation) evict(user, key string) {
	s.Look(key) // the grant may not have been seen yet
	claims := s.store.Claims(key)
	if len(claims) == 0 || claims[0].Phase != driver.Held {
		return
	}
	s.mu.Lock()
	for token := claims[0].Token; token <= max(claims[0].Token, claims[0].LastToken); token++ {
		if _, again := s.evictions[grant{key, token}]; !again {
			s.evictions[grant{key, token}] = s.Now()
		}
	}
	s.lastEviction[key] = s.Now()
	s.logf("%s evicts token %d of %s", user, claims[0].Token, key)
	s.mu.Unlock()
	s.store.Evict(key, claims[0].ID, claims[0].Token)
	s.Look(key)
}

const (
	closing = 4 * time.Second             // what was under way when Clients were closed is over
	allOver = 70*time.Second + maxSetBack // longer than the longest lease
)

// end checks what the store has when every Client is closed. Nothing but a call that was
// repeated or came late may have left a claim, and none may outlive its lease.
func (s *Simulation) end() {
	pause(closing)
	if s.calm {
		s.leftovers("after Close, and nothing fails", true)
	}
	pause(allOver)
	s.leftovers("longer than any lease after Close", false)
}

func (s *Simulation) leftovers(when string, early bool) {
	for _, key := range Keys() {
		claims := s.store.Claims(key)
		s.mu.Lock()
		for _, c := range claims {
			if early && s.lingers[grant{key, c.Token}] {
				continue
			}
			s.failf("ghost", "%s has a claim of %q, phase %v, token %d, %s", key, c.Info.Purpose, c.Phase, c.Token, when)
		}
		s.mu.Unlock()
	}
}
