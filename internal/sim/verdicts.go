package sim

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// The calls by which a user asks for a lock.
const (
	verbLock       = "Lock"
	verbTryLock    = "TryLock"
	verbAcquire    = "Acquire"
	verbTryAcquire = "TryAcquire"
	verbDo         = "Do"
	verbAll        = "AcquireAll"
)

// Verbs are the calls by which users ask for locks.
func Verbs() []string {
	return []string{verbLock, verbTryLock, verbAcquire, verbTryAcquire, verbDo, verbAll}
}

// A Way is one way to get a lock.
type Way struct {
	Verb string
	Mode driver.Mode
}

// A Count is how often a lock was asked for, and how often it was granted.
type Count struct{ Asked, Granted int }

// Counts are how often each way was tried in a run, and succeeded.
func (s *Simulation) Counts() map[Way]Count {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.counts
}

func (q *Request) way() Way { return Way{q.verb, q.Mode} }

// tries reports whether the call does not wait.
func (q *Request) tries() bool { return q.verb == verbTryLock || q.verb == verbTryAcquire }

// byKey reports whether the lock belongs to its key, and not to a Guard.
func (q *Request) byKey() bool { return q.verb == verbLock || q.verb == verbTryLock }

func (s *Simulation) count(q *Request, granted bool) {
	if q.verb == "" {
		return
	}
	one := s.counts[q.way()]
	if granted {
		one.Granted++
	} else {
		one.Asked++
	}
	s.counts[q.way()] = one
}

// checkCounts fails if a run in which nothing fails has granted too little.
func (s *Simulation) checkCounts() {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all Count
	for _, one := range s.counts {
		all.Asked += one.Asked
		all.Granted += one.Granted
	}
	if s.calm && all.Granted < all.Asked/minGranted {
		s.failf("refused", "%d of %d calls were granted, and nothing fails", all.Granted, all.Asked)
	}
}

// minGranted is the least share of the calls, one in so many, that is granted if nothing
// fails. Users give up, and refuse to wait, by the same random choices in every run.
const minGranted = 5

// isContextError reports whether an error says that a context has ended.
func isContextError(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)
}

// over reports whether the context of a call has ended, or is about to: its deadline has passed, and
// its timer has not run yet.
func (q *Request) over() bool {
	at, ok := q.Patience.Deadline()
	return q.Patience.Err() != nil || ok && !time.Now().Before(at)
}

// checkRefusal fails if a call that got nothing has an error that it must not have, or none.
func (s *Simulation) checkRefusal(q *Request, err error) {
	if why := s.misjudged(q, err); why != "" {
		s.failf("refused", "%s of %s was refused %s, %s: %v", q.verb, q.User, q.Key, why, err)
	}
}

// misjudged says what is wrong with the error of a call that got nothing.
func (s *Simulation) misjudged(q *Request, err error) string {
	switch over := q.over(); {
	case err == nil && q.byKey() && (s.closed[q.client] || s.evictedSince(q.Key, q.Asked) || s.unlockedByOther[keyed{q.client, q.Key}] || s.hasObservers()):
		return "" // what it had ended before its user could look
	case err == nil:
		return "without an error"
	case errors.Is(err, dlock.ErrClosed):
		return unless(s.closed[q.client], "and its Client is open")
	case isContextError(err):
		return unless(over, "and its context lives")
	case q.Together && errors.Is(err, dlock.ErrOwnershipLost): // while it waited for another key
		return unless(!s.calm || s.evictedSince(q.Key, q.Asked), "and nothing fails")
	case errors.Is(err, dlock.ErrLockAlreadyHeld), errors.Is(err, dlock.ErrOwnershipLost):
		return unless(s.lockedBeside(q), "and its Client had not locked the key")
	case errors.Is(err, dlock.ErrUnknownOutcome):
		evicted := q.tries() && s.evictedSince(q.Key, q.Asked) // before it was answered
		return unless(!s.calm || evicted || q.HasWait && s.Now() >= q.Asked+q.Wait, "and nothing fails")
	case errors.Is(err, dlock.ErrLockHeldByOther):
		return unless(q.tries() || q.HasWait, "and was to wait")
	case errors.Is(err, dlock.ErrUnavailable), errors.Is(err, dlock.ErrDenied), errors.Is(err, dlock.ErrNotReady):
		return unless(!s.calm, "and nothing fails")
	}
	return "with an error of no known kind"
}

func unless(fine bool, why string) string {
	if fine {
		return ""
	}
	return why
}

// A keyed lock is found by its Client and its key.
type keyed struct {
	client *dlock.Client
	key    string
}

// lockedBeside reports whether another call of the same Client had the key by Lock or TryLock,
// or was taking it, while a call was made.
func (s *Simulation) lockedBeside(q *Request) bool {
	if !q.byKey() {
		return false
	}
	for _, o := range s.byKey[keyed{q.client, q.Key}] {
		if o != q && (o.returned == 0 || o.returned >= q.Asked) {
			return true
		}
	}
	return false
}

// unlocksForOther records that a user unlocks a key which another one locked and lost. What
// the other unlocks later may be the lock of a third.
func (s *Simulation) unlocksForOther(c *dlock.Client, key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unlockedByOther[keyed{c, key}] = true
}

// isStolen reports whether what a user locked by its key may have been unlocked by another.
func (s *Simulation) isStolen(h *Hold) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return h.byKey() && s.unlockedByOther[keyed{h.client, h.Key}]
}

func (s *Simulation) evictedSince(key string, from time.Duration) bool {
	at, ok := s.lastEviction[key]
	return ok && at >= from
}

// lost reports whether a hold has ended by itself, as far as its user was told.
func (h *Hold) lost() bool { return h.isLoss(context.Cause(h.own)) }

// isLoss reports whether an error says that this lock was lost. Several that are held together end with the first.
func (h *Hold) isLoss(err error) bool {
	var of *dlock.Error
	return errors.Is(err, dlock.ErrOwnershipLost) && (!h.Together || errors.As(err, &of) && of.Key == h.Key)
}

// checkUnlock fails if the error of an Unlock, or of a Do whose function ran, is not true.
func (s *Simulation) checkUnlock(h *Hold, err error) {
	if h.Inside != nil || h.byKey() && s.unlockedByOther[keyed{h.client, h.Key}] {
		return
	}
	if why := s.misjudgedUnlock(h, err); why != "" {
		s.failf("unlock", "%s by %s of %s, token %d, %s: %v", h.verb, h.User, h.Key, h.Token, why, err)
	}
}

func (s *Simulation) misjudgedUnlock(h *Hold, err error) string {
	lost := errors.Is(err, dlock.ErrOwnershipLost)
	switch {
	case h.lost():
		return unless(lost, "was lost, and unlocking does not say so")
	case errors.Is(context.Cause(h.own), dlock.ErrClosed):
		return unless(errors.Is(err, dlock.ErrClosed), "was ended by Close, and unlocking does not say so")
	case errors.Is(err, dlock.ErrClosed) && h.Together && s.hasObservers():
		// Unlock ends the context of all first. A tracer may then hold it up until its Client is closed.
		return unless(s.closed[h.client], "was ended by Close, and its Client is open")
	case err == nil:
		return unless(!s.wasEvicted(h), "was evicted before that, and unlocking does not say so")
	case lost:
		// Of several, the context names the first that was lost, or none if a tracer has held up the call after it had ended.
		return unless(s.mayBeGone(h) || h.Together && s.leaseMayBeOver(h), "was not lost, and unlocking says so")
	case h.verb == verbDo:
		return "was unlocked, and Do has an error that its function did not return"
	case errors.Is(err, dlock.ErrUnknownOutcome):
		ended := time.Duration(h.ended.Load()) // 0: at this moment, and it was not recorded yet
		gaveUp := h.Patience.Err() != nil && (ended == 0 || ended >= h.leftAt)
		late := s.Now() >= h.validUntil // a lock that is not there then may have been released or not
		return unless(!s.calm || gaveUp || late || s.closed[h.client], "was not confirmed, and nothing fails")
	}
	return "was unlocked with an error of no known kind"
}

// wasEvicted reports whether an Unlock must have learned that its lock was evicted: it was before
// the call, the call asks the store, and nothing fails that would make it ask twice.
func (s *Simulation) wasEvicted(h *Hold) bool {
	at, evicted := s.evictions[h.grant()]
	asks := !h.Lingers && !h.Async && h.verb != verbDo && h.Purpose != shared // nor is it handed over
	return evicted && at <= h.leftAt && asks && s.calm && s.Fences
}

// mayBeGone reports whether the store may have dropped a lock before its user learned of it.
func (s *Simulation) mayBeGone(h *Hold) bool {
	slept := !s.lastWake.IsZero() && s.lastWake.Sub(s.begin) >= h.entered-wakeGrace
	return s.isEvicted(h) || slept
}

// leaseMayBeOver reports whether a Client may have lost a lock by now because it was told so, or was told of no renewal in time.
func (s *Simulation) leaseMayBeOver(h *Hold) bool {
	l, known := s.leases[h.grant()]
	if !known {
		return !s.calm
	}
	return l.gone || l.late || s.Now() >= l.until-h.sparing()
}

// answerIn is how soon an Extend is answered if nothing fails.
const answerIn = time.Second

// extended is called by users for an Extend that has returned: whether the lock was lost before,
// and the context of the call, which it had for so long.
func (s *Simulation) extended(limit context.Context, h *Hold, lost bool, long time.Duration, err error) {
	switch {
	case s.isStolen(h):
	case err == nil && lost:
		s.wrong("lie", "%s had lost token %d of %s, and Extend says nothing of it", h.User, h.Token, h.Key)
	case err == nil:
	case errors.Is(err, dlock.ErrOwnershipLost), errors.Is(err, dlock.ErrClosed):
		s.ends(h, "Extend", err)
	case !errors.Is(err, dlock.ErrUnknownOutcome), limit.Err() == nil, s.calm && long >= answerIn:
		s.wrong("lie", "%s extends token %d of %s, and is told: %v", h.User, h.Token, h.Key, err)
	}
}

// ends fails unless the context of a hold of which a call says that it is over has ended by
// that. The context may end just after the call. Of a lock that another user unlocked, it
// says nothing.
func (s *Simulation) ends(h *Hold, call string, err error) {
	s.Go(func() {
		pause(time.Millisecond)
		if s.isStolen(h) {
			return
		}
		cause := context.Cause(h.own)
		if errors.Is(err, dlock.ErrOwnershipLost) && errors.Is(cause, dlock.ErrOwnershipLost) ||
			errors.Is(err, dlock.ErrClosed) && errors.Is(cause, dlock.ErrClosed) {
			return
		}
		s.wrong("lie", "%s of %s, token %d of %s, says that it is over, and it was not: %v; %v", call, h.User, h.Token, h.Key, err, cause)
	})
}

// checkEarly fails if a lock that is to end by itself does so before its time.
func (s *Simulation) checkEarly(h *Hold) {
	if !s.calm || h.Inside != nil || !h.lost() || s.isEvicted(h) || s.hasObservers() || h.Keeps {
		return
	}
	due := h.entered + h.MaxHold
	if h.Fixed && (h.MaxHold == 0 || h.TTL < h.MaxHold) {
		due = h.entered + h.TTL - h.margin(h.TTL)
	}
	if h.Fixed && h.asked {
		return
	}
	if at := time.Duration(h.endedAt.Load()); at != 0 && at < due-early {
		s.failf("false loss", "%s lost token %d of %s at %v, before %v", h.User, h.Token, h.Key, at, due)
	}
}

// early is how much sooner than its user reckons a lock may end: the lease counts from when
// the call was sent.
const early = 500 * time.Millisecond

// shut closes a Client, and checks what that says and leaves.
func (s *Simulation) shut(c *dlock.Client) error {
	s.mu.Lock()
	s.closed[c] = true
	s.mu.Unlock()
	err := c.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.logf("a Client is closed: %v", err)
	if s.calm && s.Exact && err == nil {
		time.AfterFunc(sweeping, func() { s.checkClosed(c) })
	}
	if err != nil && (s.calm || !errors.Is(err, dlock.ErrUnknownOutcome)) {
		s.failf("close", "a Client was closed with an error: %v", err)
	}
	for _, key := range Keys() {
		for _, h := range s.holds[key] {
			if h.client == c && h.own.Err() == nil {
				s.failf("close", "the Client of %s is closed, and the context of token %d of %s lives", h.User, h.Token, key)
			}
		}
	}
	return err
}

// checkClosed fails if the store has a claim of a Client some time after its Close.
func (s *Simulation) checkClosed(c *dlock.Client) {
	for _, key := range Keys() {
		claims := s.store.Claims(key)
		s.mu.Lock()
		for _, cl := range claims {
			if s.callers[cl.Info.Purpose] == c && !s.lingers[grant{key, cl.Token}] {
				s.failf("ghost", "%s has a claim of %q, phase %v, token %d, and its Client was closed", key, cl.Info.Purpose, cl.Phase, cl.Token)
			}
		}
		s.mu.Unlock()
	}
}

func (w Way) String() string { return fmt.Sprintf("%s, %s", w.Verb, w.Mode) }
