package drivertest

import (
	"slices"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// queueUp submits one holder and n waiters, each with its own driver. It renews those that wait meanwhile: a backend may
// keep their places for less time than they ask for, and a busy machine takes long for all of them.
func (s *suite) queueUp(key string, n int, ref func(string) driver.Ref) (ds []driver.Driver, refs []driver.Ref) {
	s.Helper()
	for i := range n + 1 {
		d, r := s.open(), ref(key)
		want := driver.Queued
		if i == 0 {
			want = driver.Held
		}
		s.submit(d, waiting(r), want)
		for j := 1; j < i; j++ {
			s.renew(ds[j], refs[j], driver.Queued)
		}
		ds, refs = append(ds, d), append(refs, r)
	}
	return ds, refs
}

// keepQueued renews all waiters of one driver in one call.
func (s *suite) keepQueued(d driver.Driver, waiters []driver.Ref) {
	s.Helper()
	want := slices.Repeat([]driver.State{{Phase: driver.Queued}}, len(waiters))
	s.renewMany(d, waiters, want, time.Now().Add(longLease))
}

// order: claims are granted in the order of their arrival, or, without FIFO, all of them
// eventually.
func order(s *suite) {
	ds, refs := s.queueUp("k", 8, s.ref)
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
	s.eventually(s.patience(), "the key is held", func() bool {
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

// handOff: a release gives the key to the waiter in the same step, so that no other claim can take
// it in between.
func handOff(s *suite) {
	ds, refs := s.queueUp("k", 1, s.ref)
	s.release(ds[0], refs[0], driver.Held)
	if s.Caps.FIFO {
		s.submit(ds[0], request(s.ref("k")), driver.Gone)
	}
	s.granted(ds[1], refs[1], s.patience())
	s.submit(ds[0], request(s.ref("k")), driver.Gone)
}

func push(s *suite) {
	ds, refs := s.queueUp("k", 2, s.ref)
	s.release(ds[0], refs[0], driver.Held)
	if !s.Caps.Push {
		s.granted(ds[1], refs[1], s.patience())
		return
	}
	ev := s.event(ds[1])
	if ev.State.Phase == driver.Unknown { // only a hint to look, as early as the backend likes
		ev.State = s.granted(ds[1], refs[1], s.patience())
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

// unreadPushes: a Client that does not read its pushes blocks no other Client, and finds its grants
// by renewing.
func unreadPushes(s *suite) {
	d, deaf := s.open(), s.open()
	// More than a backend may keep, unless the harness wants the suite to be brief.
	n := min(1000, max(300, s.Grants))
	holders, waiters := make([]driver.Ref, n), make([]driver.Ref, n)
	for i := range n {
		key := "k" + string(rune('0'+i%64))
		holders[i], waiters[i] = s.ref(key), s.ref(key)
		s.submit(d, request(holders[i]), driver.Held)
		s.submit(deaf, waiting(waiters[i]), driver.Queued)
		s.release(d, holders[i], driver.Held)
		s.granted(deaf, waiters[i], s.patience())
		s.release(deaf, waiters[i], driver.Held)
	}
}

func cancelInQueue(s *suite) {
	ds, refs := s.queueUp("k", 3, s.ref)
	s.release(ds[2], refs[2], driver.Queued) // in the middle
	s.release(ds[1], refs[1], driver.Queued) // at the head
	s.renew(ds[1], refs[1], driver.Gone)
	s.renew(ds[2], refs[2], driver.Gone)
	s.release(ds[0], refs[0], driver.Held)
	s.granted(ds[3], refs[3], s.patience())
	s.release(ds[3], refs[3], driver.Held)
	s.submit(ds[0], request(s.ref("k")), driver.Held)
}

// ghostHeads: any number of dead waiters ahead delay the first live one by a single heartbeat.
func ghostHeads(s *suite) {
	if s.Caps.Lease { // without leases, a waiter keeps its place while its process lives
		s.untilShown(s.passesGhosts)
	}
}

// passesGhosts is one trial of ghostHeads. It is void if the live waiter was renewed so late that its heartbeat may have ended.
func (s *suite) passesGhosts() (void string) {
	d, key := s.open(), newID() // a void trial may leave claims
	holder, live := s.ref(key), s.brief(key)
	beat := driver.Heartbeat(s.TTL)
	s.submit(d, request(holder), driver.Held)
	var silent time.Time // before the last one was submitted, which lives for a heartbeat at least
	for range 10 {
		silent = time.Now()
		s.submit(d, waiting(s.brief(key)), driver.Queued)
	}
	renewed := time.Now()
	s.submit(d, waiting(live), driver.Queued)
	s.release(d, holder, driver.Held)
	s.eventually(beat*4/3+s.Slack, "the claim is granted", func() bool {
		before := renewed
		renewed = time.Now()
		st := s.look(d, live)
		if st.Phase == driver.Gone && s.isLate(before, beat) {
			void = "the live waiter was renewed too late"
		} else if st.Phase == driver.Gone {
			s.Fatalf("the live waiter is gone")
		}
		return void != "" || st.Phase == driver.Held
	})
	if void == "" && s.Caps.FIFO && time.Since(silent) < beat/2 {
		s.Errorf("the live waiter passed others that had not missed a heartbeat")
	}
	return void
}

// patientWaiter: a waiter that renews keeps its place for many heartbeats.
func patientWaiter(s *suite) { s.untilShown(s.keepsItsPlace) }

// keepsItsPlace is one trial of patientWaiter. It is void if a renewal of the waiter came so late
// that its heartbeat may have ended: it may be gone then, which is not a fault of the backend.
func (s *suite) keepsItsPlace() (void string) {
	const late = "the waiter was renewed too late"
	d, other := s.open(), s.open()
	key := newID()                             // a void trial may leave claims
	holder, waiter := s.ref(key), s.brief(key) // only the waiter has to be quick
	beat := driver.Heartbeat(waiter.TTL)
	s.submit(d, request(holder), driver.Held)
	renewed := time.Now()
	s.submit(other, waiting(waiter), driver.Queued)
	// inTime renews the waiter, and returns false if that was too late for a conclusion.
	inTime := func(want ...driver.Phase) bool {
		s.Helper()
		before := renewed
		renewed = time.Now()
		st := s.look(other, waiter)
		isWanted := slices.Contains(want, st.Phase)
		if !isWanted && !s.isLate(before, beat) {
			s.Fatalf("Renew(%q) = %v, want %v", key, st.Phase, want)
		}
		return isWanted
	}
	for range 12 {
		elapse(beat / 3)
		s.renew(d, holder, driver.Held)
		if !inTime(driver.Queued) {
			s.release(d, holder, driver.Held)
			return late
		}
	}
	s.release(d, holder, driver.Held)
	if !inTime(driver.Held, driver.Queued) {
		return late
	}
	s.granted(other, waiter, s.patience())
	return ""
}

// lateWaiter: a waiter past its deadline is gone at its next renewal, also behind one that keeps
// renewing. Without leases it keeps its place.
func lateWaiter(s *suite) { s.untilShown(s.losesItsPlace) }

// losesItsPlace is one trial of lateWaiter. What it asserts is true whatever happens to the waiter
// in front. The trial is void if that one did not wait until the end, because the late ones were
// then behind no waiter.
func (s *suite) losesItsPlace() (void string) {
	d, other := s.open(), s.open()
	key := newID() // a void trial may leave claims
	front, here, elsewhere := s.brief(key), s.brief(key), s.brief(key)
	s.submit(d, request(s.ref(key)), driver.Held)
	s.submit(d, waiting(front), driver.Queued)
	s.submit(d, waiting(here), driver.Queued) // a driver may know more of its own claims than of others
	s.submit(other, waiting(elsewhere), driver.Queued)
	beat, want := driver.Heartbeat(s.TTL), driver.Gone
	silence := beat + s.Slack
	if !s.Caps.Lease {
		silence, want = 2*beat, driver.Queued
	}
	for end := time.Now().Add(silence); time.Now().Before(end); {
		elapse(beat / 3)
		s.look(d, front)
	}
	s.renew(d, here, want)
	s.renew(other, elsewhere, want)
	if s.look(d, front).Phase != driver.Queued {
		return "the waiter in front was renewed too late"
	}
	return ""
}
