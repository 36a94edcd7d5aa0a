package memlock

import (
	"math"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// An entry is the state of one key that has claims.
type entry struct {
	name string
	// Links in the ring of all entries, which are examined in turn.
	prev, next *entry

	holders   list
	queue     list
	submitted int64              // claims ever queued here; numbers them
	index     map[string]*record // by claim ID, once scanning would be slow
	first     record             // the claim that the entry was made for: mostly the only one
}

// A record is one claim. It is in exactly one list of its entry.
type record struct {
	id         string
	owner      *memory
	entry      *entry
	info       *driver.Info
	prev, next *record
	deadline   time.Duration // on the Store's clock
	since      time.Duration // when it reached its phase
	token      int64
	number     int64
	limit      int32
	tokens     int32
	mode       driver.Mode
	phase      driver.Phase
}

// indexFrom is the number of claims from which an entry has an index.
const indexFrom = 8

// entry returns the entry of name, creating it if needed. dropIfEmpty removes it again if no claim
// is submitted there.
func (s *Store) entry(name string, now time.Duration) *entry {
	e := s.keys[name]
	if e == nil {
		s.dropOver(now)
		e = &entry{name: name}
		s.keys[name] = e
		s.enterRing(e)
	}
	return e
}

// dropOver drops expired claims of names that are not used again. It examines two names for each
// new name and for each new waiter, so that neither accumulate, and a few claims of each, so that
// no call takes long.
func (s *Store) dropOver(now time.Duration) {
	for range 2 {
		e := s.turn
		if e == nil {
			return
		}
		s.turn = e.next
		for range maxDrops {
			first := e.holders.head
			if first == nil || first.deadline > now {
				break
			}
			e.drop(first)
		}
		if e.holders.head == nil {
			s.serve(e, now, maxDrops)
			s.dropIfEmpty(e)
		}
	}
}

// maxDrops is how many holders, and how many waiters, of a name are dropped at once.
const maxDrops = 16

func (s *Store) dropIfEmpty(e *entry) bool {
	if e.holders.head != nil || e.queue.head != nil {
		return false
	}
	delete(s.keys, e.name)
	s.leaveRing(e)
	return true
}

// enterRing inserts an entry where it is examined last.
func (s *Store) enterRing(e *entry) {
	if s.turn == nil {
		s.turn, e.prev, e.next = e, e, e
		return
	}
	e.prev, e.next = s.turn.prev, s.turn
	e.prev.next, e.next.prev = e, e
}

func (s *Store) leaveRing(e *entry) {
	if s.turn == e {
		s.turn = e.next
	}
	if s.turn == e { // it was alone
		s.turn = nil
		return
	}
	e.prev.next, e.next.prev = e.next, e.prev
}

// advance drops the holders whose deadline has passed. Then it grants from the head of the queue,
// dropping dead heads, until the head does not fit.
func (s *Store) advance(e *entry, now time.Duration) {
	for c := e.holders.head; c != nil; {
		next := c.next
		if c.deadline <= now {
			e.drop(c)
		}
		c = next
	}
	s.serve(e, now, math.MaxInt)
}

// serve grants from the head of the queue, dropping dead heads, until the head does not fit or most
// waiters were examined.
func (s *Store) serve(e *entry, now time.Duration, most int) {
	for c := e.queue.head; c != nil && most > 0; c = e.queue.head {
		most--
		if c.deadline <= now {
			e.drop(c)
			continue
		}
		if !e.fits(c.mode, int(c.limit)) {
			return
		}
		s.grant(e, c, now)
		c.owner.Send(driver.Event{Key: c.key(), ID: c.id, State: driver.State{Phase: driver.Held, Token: c.token}})
	}
}

// grant moves a queued claim to the holders. Its deadline does not change.
func (s *Store) grant(e *entry, c *record, now time.Duration) {
	s.fence++
	c.token = s.fence
	s.fence += int64(c.tokens) - 1
	e.queue.remove(c)
	c.phase, c.since = driver.Held, now
	e.holders.append(c)
}

// remove removes the claim with this ID if it is alive and matches, and grants the key to the next.
func (s *Store) remove(name, id string, now time.Duration, matches func(*record) bool) driver.State {
	e := s.keys[name]
	if e == nil {
		return driver.State{Phase: driver.Gone}
	}
	defer s.dropIfEmpty(e)
	s.advance(e, now)
	c := e.find(id, now)
	if c == nil || !matches(c) {
		return driver.State{Phase: driver.Gone}
	}
	e.drop(c)
	s.advance(e, now)
	return driver.State{Phase: c.phase, Token: c.token}
}

// fits is the single rule of all modes; see driver.Mode.
func (e *entry) fits(m driver.Mode, limit int) bool {
	h := e.holders.head
	switch {
	case h == nil:
		return true
	case m == driver.Exclusive || h.mode != m:
		return false
	case m == driver.Shared:
		return true
	}
	return int(h.limit) == limit && e.holders.n < limit
}

// newRecord returns space for a claim.
func (e *entry) newRecord() *record {
	if e.submitted == 0 {
		return &e.first
	}
	return &record{}
}

func (e *entry) enqueue(c *record) {
	e.submitted++
	c.number = e.submitted
	e.queue.append(c)
	switch n := e.holders.n + e.queue.n; {
	case e.index != nil:
		e.index[c.id] = c
	case n > indexFrom:
		e.index = make(map[string]*record, 2*n)
		for _, l := range []*list{&e.holders, &e.queue} {
			for c := l.head; c != nil; c = c.next {
				e.index[c.id] = c
			}
		}
	}
}

// find returns the living claim with this ID, or nil. advance drops dead claims at the head of the
// queue. find drops a dead claim behind a living head when that claim is looked up.
func (e *entry) find(id string, now time.Duration) *record {
	c := e.lookup(id)
	if c != nil && c.deadline <= now {
		e.drop(c)
		return nil
	}
	return c
}

func (e *entry) lookup(id string) *record {
	if e.index != nil {
		return e.index[id]
	}
	for _, l := range []*list{&e.holders, &e.queue} {
		for c := l.head; c != nil; c = c.next {
			if c.id == id {
				return c
			}
		}
	}
	return nil
}

func (e *entry) drop(c *record) {
	if c.phase == driver.Held {
		e.holders.remove(c)
	} else {
		e.queue.remove(c)
	}
	delete(e.index, c.id)
}

// state returns the State of a claim whose call was sent at sent.
func (e *entry) state(c *record, sent time.Time, now time.Duration, r *driver.Ref) driver.State {
	if c.phase == driver.Held {
		return driver.State{Phase: driver.Held, Token: c.token, Until: sent.Add(r.TTL)}
	}
	st := driver.State{Phase: driver.Queued, Until: sent.Add(r.Heartbeat())}
	st.Ahead = e.holders.n + int(c.number-e.queue.head.number)
	if c == e.queue.head {
		st.Recheck = e.earliestEnd() - now + time.Millisecond
	}
	return st
}

// earliestEnd returns when the first holder would be gone if none were renewed.
func (e *entry) earliestEnd() time.Duration {
	end := e.holders.head.deadline
	for c := e.holders.head.next; c != nil; c = c.next {
		end = min(end, c.deadline)
	}
	return end
}

func (c *record) key() string { return c.entry.name[len(c.owner.prefix):] }

func (c *record) restart(now time.Duration, r *driver.Ref) {
	c.deadline = now + r.TTL
	if c.phase == driver.Queued {
		c.deadline = now + r.Heartbeat()
	}
}

func (c *record) show(now time.Duration) driver.Claim {
	shown := driver.Claim{
		ID: c.id, Phase: c.phase, Mode: c.mode, Limit: int(c.limit), Token: c.token,
		Info: *c.info, Age: now - c.since, Remaining: c.deadline - now,
	}
	if c.phase == driver.Held && c.tokens > 1 {
		shown.LastToken = c.token + int64(c.tokens) - 1
	}
	return shown
}

// A list is an intrusive doubly linked list of records.
type list struct {
	head, tail *record
	n          int
}

func (l *list) append(c *record) {
	c.prev, c.next = l.tail, nil
	if l.tail == nil {
		l.head = c
	} else {
		l.tail.next = c
	}
	l.tail = c
	l.n++
}

func (l *list) remove(c *record) {
	if c.prev == nil {
		l.head = c.next
	} else {
		c.prev.next = c.next
	}
	if c.next == nil {
		l.tail = c.prev
	} else {
		c.next.prev = c.prev
	}
	c.prev, c.next = nil, nil
	l.n--
}
