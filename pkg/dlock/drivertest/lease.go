package drivertest

import (
	"fmt"
	"sync"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// mixedBatch: one call renews claims in every phase and of several keys, and
// result i answers ref i.
func mixedBatch(s *suite) {
	d := s.open()
	held, queued, absent, released, other := s.ref("k"), s.ref("k"), s.ref("k"), s.ref("r"), s.ref("k2")
	s.submit(d, request(held), driver.Held)
	s.submit(d, waiting(queued), driver.Queued)
	s.submit(d, request(released), driver.Held)
	s.release(d, released, driver.Held)
	s.submit(d, request(other), driver.Held)
	foreign := held
	foreign.Key = "k2" // the ID of a claim on another key

	refs := []driver.Ref{absent, queued, other, released, held, foreign, s.ref("k3")}
	want := []driver.Phase{driver.Gone, driver.Queued, driver.Held, driver.Gone, driver.Held, driver.Gone, driver.Gone}
	var states []driver.State
	_, err := s.ask(func() (err error) { states, err = d.Renew(s.ctx, refs); return err })
	if err != nil || len(states) != len(refs) {
		s.Fatalf("Renew of %d claims = %d states, %v", len(refs), len(states), err)
	}
	for i, st := range states {
		if st.Phase != want[i] {
			s.Errorf("claim %d is %v, want %v", i, st.Phase, want[i])
		}
	}
	if states, err := d.Renew(s.ctx, nil); err != nil || len(states) != 0 {
		s.Errorf("Renew of nothing = %v, %v", states, err)
	}
}

func renewalNeverCreates(s *suite) {
	d := s.open()
	r := s.ref("k")
	s.renew(d, r, driver.Gone)
	s.submit(d, request(s.ref("k")), driver.Held)
	s.renew(d, r, driver.Gone)
}

// silentHolder: with a lease, a holder that is not renewed is gone permanently when its lease has
// expired; without one it keeps the key as long as its process lives.
func silentHolder(s *suite) {
	d, other := s.open(), s.open()
	silent := s.brief("k")
	s.submit(d, request(silent), driver.Held)
	if !s.Caps.Lease {
		elapse(3 * s.TTL)
		s.submit(other, request(s.ref("k")), driver.Gone)
		s.renew(d, silent, driver.Held)
		return
	}
	next := s.takes(other, "k", s.TTL+s.Slack)
	s.renew(d, silent, driver.Gone)
	s.release(d, silent, driver.Gone)
	s.renew(other, next, driver.Held)
	s.release(other, next, driver.Held)
	s.renew(d, silent, driver.Gone) // the key is free, but the claim is not revived
	s.submit(other, request(s.ref("k")), driver.Held)
}

func renewalKeeps(s *suite) {
	d, other := s.open(), s.open()
	s.untilShown(func() (void string) {
		r, renewed := s.brief("k"), time.Now()
		st := s.submit(d, request(r), driver.Held)
		for range 6 {
			elapse(time.Until(renewed.Add(s.TTL / 2)))
			before := renewed
			renewed = time.Now()
			now := s.look(d, r)
			if now.Phase != driver.Held && s.isLate(before, s.TTL) {
				return "a holder was renewed too late"
			}
			if now.Phase != driver.Held || now.Token != st.Token {
				s.Fatalf("a renewal changed held %d to %v %d", st.Token, now.Phase, now.Token)
			}
		}
		next := s.ref("k")
		taken := s.acquire(other, request(next)).Phase == driver.Held
		switch {
		case taken && s.isLate(renewed, s.TTL):
			s.release(other, next, driver.Held)
			return "the lease ended before another asked for the key"
		case taken:
			s.Fatalf("another got the key %v after a renewal for %v", time.Since(renewed), s.TTL)
		}
		return ""
	})
}

// renewalSetsTTL: a renewal uses the TTL of its own Ref, longer or shorter than before.
func renewalSetsTTL(s *suite) {
	if !s.Caps.Lease {
		return // the TTL is accepted and means nothing
	}
	s.untilShown(s.setsTTL)
}

// setsTTL is one trial of renewalSetsTTL. It is void if the first renewal came so late that the lease may have ended.
func (s *suite) setsTTL() (void string) {
	d, other := s.open(), s.open()
	r, submitted := s.brief(newID()), time.Now() // a void trial may leave claims
	s.submit(d, request(r), driver.Held)
	r.TTL = 20 * s.TTL // far longer than Slack
	before := time.Now()
	st := s.look(d, r)
	switch {
	case st.Phase != driver.Held && s.isLate(submitted, s.TTL):
		return "the holder was renewed too late"
	case st.Phase != driver.Held:
		s.Fatalf("Renew(%q) = %v, want held", r.Key, st.Phase)
	}
	s.checkUntil(st, before, r.TTL)
	elapse(2 * s.TTL)
	s.submit(other, request(s.ref(r.Key)), driver.Gone)
	r.TTL = s.TTL
	s.renew(d, r, driver.Held)
	s.takes(other, r.Key, s.TTL+s.Slack)
	return ""
}

// untilIsPessimistic: no other claim gets a key before the Until of its holder, in any mode, and
// whether it was renewed or not.
func untilIsPessimistic(s *suite) {
	if !s.Caps.Lease {
		return // Submitting asserts that Until is zero
	}
	d, keeper, other := s.open(), s.open(), s.open()
	held := map[string]driver.State{} // by key
	renewed := map[driver.Mode]driver.Ref{}
	begun := time.Now()
	for _, mode := range s.Caps.Modes {
		for round := range 3 {
			r := driver.Request{Ref: s.brief(fmt.Sprint(mode, round)), Mode: mode}
			if mode == driver.Permit {
				r.Limit = 2
			}
			if round < 2 {
				held[r.Key] = s.submit(d, r, driver.Held)
				continue
			}
			held[r.Key] = s.submit(keeper, r, driver.Held) // its renewals may keep the other claims of a driver
			renewed[mode] = r.Ref
		}
	}
	elapse(s.TTL / 3)
	for _, r := range renewed {
		held[r.Key] = s.renew(keeper, r, driver.Held)
	}
	var wg sync.WaitGroup
	for key, st := range held { // each by its own goroutine: an Until that is a little too late shows only at once
		wg.Go(func() { s.freeAfter(other, key, st.Until, begun) })
	}
	wg.Wait()
}

// freeAfter asserts that a key whose lease began then comes free, and not before. It may be called from any goroutine.
func (s *suite) freeAfter(d driver.Driver, key string, until, begun time.Time) {
	free := s.polls(s.TTL+s.Slack, func() bool {
		_, ok := s.tries(d, key, begun)
		return ok
	})
	early := time.Until(until)
	switch {
	case !free:
		s.Errorf("%s: not free within %v", key, s.TTL+s.Slack)
	case early > 0:
		s.Errorf("%s: the key passed on %v before Until", key, early)
	}
}

// grantKeepsDeadline: a waiter that is not renewed after submitting is granted the key for the rest
// of its heartbeat, not for a lease from the grant on.
func grantKeepsDeadline(s *suite) {
	if !s.Caps.Lease {
		return
	}
	d, other := s.open(), s.open()
	holder, waiter := s.ref("k"), s.ref("k")
	waiter.TTL, waiter.QueueTTL = s.WaiterTTL, 0
	beat := driver.Heartbeat(waiter.TTL)
	s.submit(d, request(holder), driver.Held)
	submitted := time.Now()
	st := s.submit(other, waiting(waiter), driver.Queued)
	elapse(beat / 2)
	s.release(d, holder, driver.Held)
	s.takes(d, "k", s.WaiterTTL+s.Slack)
	if early := time.Until(st.Until); early > 0 && s.Caps.FIFO {
		s.Errorf("the key passed on %v before the waiter's Until", early)
	}
	if took := time.Since(submitted); took > beat*5/4+s.Slack {
		s.Errorf("a waiter that was silent for %v had the key until then; its heartbeat is %v", took, beat)
	}
}
