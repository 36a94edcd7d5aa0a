package drivertest

import (
	"slices"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// line files one holder and n waiters, each with a driver of its own.
func (s *suite) line(key string, n int, ref func(string) driver.Ref) (ds []driver.Driver, refs []driver.Ref) {
	s.Helper()
	for i := range n + 1 {
		d, r := s.open(), ref(key)
		want := driver.Queued
		if i == 0 {
			want = driver.Held
		}
		s.file(d, waiting(r), want)
		ds, refs = append(ds, d), append(refs, r)
	}
	return ds, refs
}

// order: claims are granted as they came, or, without FIFO, all in the end.
func order(s *suite) {
	ds, refs := s.line("k", 8, s.ref)
	last := int64(0)
	for len(refs) > 0 {
		i := 0
		if s.Caps.FIFO {
			for j := len(refs) - 1; j > 0; j-- { // asking first does not help
				s.renew(ds[j], refs[j], driver.Queued)
			}
		} else {
			i = s.anyHeld(ds, refs)
		}
		st := s.granted(ds[i], refs[i], s.patience())
		if s.Caps.Fencing && st.Token <= last {
			s.Errorf("token %d after %d", st.Token, last)
		}
		last = st.Token
		for j := range refs {
			if j != i {
				s.renew(ds[j], refs[j], driver.Queued)
			}
		}
		s.release(ds[i], refs[i], driver.Held)
		ds, refs = append(ds[:i], ds[i+1:]...), append(refs[:i], refs[i+1:]...)
	}
}

func (s *suite) anyHeld(ds []driver.Driver, refs []driver.Ref) (found int) {
	s.Helper()
	s.eventually(s.patience(), "somebody holds the key", func() bool {
		for i := range refs {
			if s.look(ds[i], refs[i]).Phase == driver.Held {
				found = i
				return true
			}
		}
		return false
	})
	return found
}

// handOff: a release gives the key to the waiter in the same step, so that
// nobody barges in between.
func handOff(s *suite) {
	ds, refs := s.line("k", 1, s.ref)
	s.release(ds[0], refs[0], driver.Held)
	if s.Caps.FIFO {
		s.file(ds[0], request(s.ref("k")), driver.Gone)
	}
	s.granted(ds[1], refs[1], s.patience())
	s.file(ds[0], request(s.ref("k")), driver.Gone)
}

func push(s *suite) {
	ds, refs := s.line("k", 2, s.ref)
	s.release(ds[0], refs[0], driver.Held)
	if !s.Caps.Push {
		s.granted(ds[1], refs[1], s.patience())
		return
	}
	ev := s.event(ds[1])
	for ev.State.Phase == driver.Unknown { // only a hint to look
		if st := s.look(ds[1], refs[1]); st.Phase == driver.Held {
			ev.State = st
			break
		}
		ev = s.event(ds[1])
	}
	if ev.Key != "k" || ev.ID != refs[1].ID || ev.State.Phase != driver.Held {
		s.Fatalf("pushed %q %v to the next waiter", ev.Key, ev.State.Phase)
	}
	if st := s.renew(ds[1], refs[1], driver.Held); st.Token != ev.State.Token {
		s.Errorf("pushed token %d, renewed %d", ev.State.Token, st.Token)
	}
	select {
	case ev := <-ds[2].Events():
		if ev.State.Phase == driver.Held {
			s.Errorf("pushed %v to a waiter that is not next", ev.State.Phase)
		}
	default:
	}
}

// event returns the next push that names a claim.
func (s *suite) event(d driver.Driver) driver.Event {
	s.Helper()
	for {
		select {
		case ev, ok := <-d.Events():
			if !ok {
				s.Fatal("Events was closed")
			}
			if ev.ID != "" {
				return ev
			}
		case <-time.After(10 * time.Second):
			s.Fatal("nothing was pushed")
		}
	}
}

// unreadPushes: a Client that does not read its pushes blocks nobody, and
// finds its grants by renewing.
func unreadPushes(s *suite) {
	d, deaf := s.open(), s.open()
	const n = 1000
	holders, waiters := make([]driver.Ref, n), make([]driver.Ref, n)
	for i := range n {
		key := "k" + string(rune('0'+i%64))
		holders[i], waiters[i] = s.ref(key), s.ref(key)
		s.file(d, request(holders[i]), driver.Held)
		s.file(deaf, waiting(waiters[i]), driver.Queued)
		s.release(d, holders[i], driver.Held)
		s.granted(deaf, waiters[i], s.patience())
		s.release(deaf, waiters[i], driver.Held)
	}
}

func cancelInQueue(s *suite) {
	ds, refs := s.line("k", 3, s.ref)
	s.release(ds[2], refs[2], driver.Queued) // in the middle
	s.release(ds[1], refs[1], driver.Queued) // at the head
	s.renew(ds[1], refs[1], driver.Gone)
	s.renew(ds[2], refs[2], driver.Gone)
	s.release(ds[0], refs[0], driver.Held)
	s.granted(ds[3], refs[3], s.patience())
	s.release(ds[3], refs[3], driver.Held)
	s.file(ds[0], request(s.ref("k")), driver.Held)
}

// ghostHeads: any number of dead waiters ahead cost the first live one a single
// heartbeat.
func ghostHeads(s *suite) {
	if !s.Caps.Lease {
		return // a silent waiter is one whose process lives; it keeps its place
	}
	d := s.open()
	holder, live := s.brief("k"), s.brief("k")
	s.file(d, request(holder), driver.Held)
	for range 10 {
		s.file(d, waiting(s.brief("k")), driver.Queued)
	}
	silent := time.Now()
	s.file(d, waiting(live), driver.Queued)
	s.release(d, holder, driver.Held)
	s.granted(d, live, driver.Heartbeat(s.TTL)*4/3+s.Slack)
	if s.Caps.FIFO && time.Since(silent) < driver.Heartbeat(s.TTL)/2 {
		s.Errorf("the live waiter passed others that had not missed a heartbeat")
	}
}

// patientWaiter: a waiter that renews keeps its place for many heartbeats.
func patientWaiter(s *suite) {
	const trials = 20
	for range trials {
		if s.keepsItsPlace() {
			return
		}
	}
	s.Fatalf("the machine stalled for most of a heartbeat in each of %d trials: nothing was shown", trials)
}

// keepsItsPlace is one trial of patientWaiter. It is void, and reports false, if a renewal of
// the waiter came so late that its heartbeat may have been over: it may be gone then, and that
// is no fault of the backend. When it is due counts from our own calls, since a backend that
// does not renew says so in its Until, too.
func (s *suite) keepsItsPlace() bool {
	d, other := s.open(), s.open()
	key := newID()                             // a void trial may leave claims
	holder, waiter := s.ref(key), s.brief(key) // only the waiter has to be quick
	beat := driver.Heartbeat(waiter.TTL)
	s.file(d, request(holder), driver.Held)
	renewed := time.Now()
	s.file(other, waiting(waiter), driver.Queued)
	// inTime renews the waiter, and reports false if that was too late to say anything.
	inTime := func(want ...driver.Phase) bool {
		s.Helper()
		before := renewed
		renewed = time.Now()
		st := s.look(other, waiter)
		isLate := s.Caps.Lease && time.Since(before) > beat*9/10
		isWanted := slices.Contains(want, st.Phase)
		if !isWanted && !isLate {
			s.Fatalf("Renew(%q) = %v, want %v", key, st.Phase, want)
		}
		return isWanted
	}
	for range 12 {
		elapse(beat / 3)
		s.renew(d, holder, driver.Held)
		if !inTime(driver.Queued) {
			s.release(d, holder, driver.Held)
			return false
		}
	}
	s.release(d, holder, driver.Held)
	if !inTime(driver.Held, driver.Queued) {
		return false
	}
	s.granted(other, waiter, s.patience())
	return true
}
