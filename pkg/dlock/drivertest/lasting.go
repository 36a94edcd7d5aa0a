package drivertest

import (
	"fmt"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// bigBatch: a call renews every claim that it names, however many they are.
func bigBatch(s *suite) {
	d := s.open()
	refs := make([]driver.Ref, 300)
	for i := range refs {
		refs[i] = s.ref(fmt.Sprint("k", i))
		s.file(d, request(refs[i]), driver.Held)
		refs[i].TTL *= 3
	}
	var states []driver.State
	_, err := s.ask(func() (err error) { states, err = d.Renew(s.ctx, refs); return err })
	if err != nil || len(states) != len(refs) {
		s.Fatalf("Renew of %d claims = %d states, %v", len(refs), len(states), err)
	}
	a := s.admin(d)
	for i, st := range states {
		if st.Phase == driver.Unknown && !s.virtual { // a server was late
			st = s.look(d, refs[i])
		}
		if st.Phase != driver.Held {
			s.Fatalf("claim %d of %d is %v", i, len(refs), st.Phase)
		}
		if a == nil || !s.Caps.Lease {
			continue
		}
		claims, err := a.Inspect(s.ctx, refs[i].Key)
		if err != nil || len(claims) != 1 {
			s.Fatalf("Inspect(%q) = %v, %v", refs[i].Key, claims, err)
		}
		if claims[0].Left < refs[i].TTL/2 {
			s.Fatalf("claim %d of %d was renewed for %v, and %v are left", i, len(refs), refs[i].TTL, claims[0].Left)
		}
	}
}

// filingRestarts: to file a claim again restarts its lease.
func filingRestarts(s *suite) {
	d, other := s.open(), s.open()
	r := s.brief("k")
	for range 4 {
		s.file(d, request(r), driver.Held)
		elapse(s.TTL / 2)
	}
	s.file(other, request(s.ref("k")), driver.Gone)
	s.renew(d, r, driver.Held)
}

// fenceOutlastsLeases: a grant after a lease has ended has a greater token too.
func fenceOutlastsLeases(s *suite) {
	if !s.Caps.Lease || !s.Caps.Fencing {
		return // FenceIncreases has the rest
	}
	d, other := s.open(), s.open()
	first := s.file(d, request(s.brief("k")), driver.Held)
	next := s.takes(other, "k", s.TTL+s.Slack)
	if st := s.renew(other, next, driver.Held); st.Token <= first.Token {
		s.Errorf("token %d after %d, whose lease has ended", st.Token, first.Token)
	}
}

// barLasts: an ID that was barred stays barred, since its call may be on its way for long.
func barLasts(s *suite) {
	d := s.open()
	late := s.ref("k")
	late.Unsettled = true
	s.release(d, late, driver.Gone)
	wait := 3 * time.Second
	if s.virtual {
		wait = driver.BarFor(late.TTL) - time.Second
	}
	elapse(wait)
	late.Unsettled = false
	s.file(d, request(late), driver.Gone)
	s.file(s.open(), request(late), driver.Gone)
}

// groupLeases: each of those who hold a key together has a lease of its own: one that is renewed
// stays, and one that is silent makes room.
func groupLeases(s *suite) {
	if !s.Caps.Lease {
		return // the process is the lease; Crash ends it
	}
	for mode, ask := range map[driver.Mode]func(driver.Ref) driver.Request{
		driver.Shared: shared,
		driver.Permit: func(r driver.Ref) driver.Request { return permit(r, 2) },
	} {
		if !s.Caps.Supports(mode) {
			continue
		}
		key := mode.String()
		d, other := s.open(), s.open()
		silent, renewed, next := s.brief(key), s.brief(key), s.ref(key)
		s.file(d, ask(silent), driver.Held)
		s.file(other, ask(renewed), driver.Held)
		request := ask(next)
		if mode == driver.Shared {
			request = waiting(next) // a writer
		}
		s.file(other, request, driver.Queued)
		for end := time.Now().Add(2 * s.TTL); time.Now().Before(end); {
			elapse(min(s.TTL, driver.Heartbeat(next.TTL)) / 3)
			s.renew(other, renewed, driver.Held)
			s.look(other, next)
		}
		s.renew(d, silent, driver.Gone)
		if mode == driver.Shared {
			s.renew(other, next, driver.Queued)
			s.release(other, renewed, driver.Held)
		}
		s.granted(other, next, s.patience())
	}
}
