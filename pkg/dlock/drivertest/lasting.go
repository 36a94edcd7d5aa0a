package drivertest

import (
	"fmt"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// bigBatch: a call renews every claim that it names, however many they are, held or queued,
// and result i answers ref i.
func bigBatch(s *suite) {
	d := s.open()
	refs, want, renewed := s.fileMany(d, 300)
	beat := driver.Heartbeat(refs[0].TTL)
	for range 4 { // for longer than a waiter lives without renewal
		renewed = s.renewMany(d, refs, want, renewed.Add(beat*9/10))
		elapse(beat / 3)
	}
	for i, r := range refs { // before anything that takes long: their deadline is near
		if want[i].Phase != driver.Queued {
			continue
		}
		st := s.look(d, r) // one by one: what the batch said may be wrong
		if st.Phase != driver.Queued && time.Since(renewed) < beat*9/10 {
			s.Fatalf("claim %d of %d was renewed as a waiter, and is %v", i, len(refs), st.Phase)
		}
	}
	a := s.admin(d)
	for i, r := range refs {
		if want[i].Phase != driver.Held || a == nil || !s.Caps.Lease {
			continue
		}
		claims, err := a.Inspect(s.ctx, r.Key)
		if err != nil || len(claims) != 1 {
			s.Fatalf("Inspect(%q) = %v, %v", r.Key, claims, err)
		}
		if claims[0].Left < r.TTL/2 {
			s.Fatalf("claim %d of %d was renewed for %v, and %v are left", i, len(refs), r.TTL, claims[0].Left)
		}
	}
}

// fileMany files n claims, of which some wait and some are not stored, in an order that is
// not the same from behind. It returns them with three times their TTL, and when the first of
// those that wait was filed.
func (s *suite) fileMany(d driver.Driver, n int) ([]driver.Ref, []driver.State, time.Time) {
	s.Helper()
	other := s.open()
	refs, want := make([]driver.Ref, n), make([]driver.State, n)
	var queued []int
	for i := range refs {
		refs[i] = s.ref(fmt.Sprint("k", i))
		switch i % 25 {
		case 3:
			s.file(other, request(s.ref(refs[i].Key)), driver.Held)
			queued = append(queued, i)
		case 4, 17:
			want[i].Phase = driver.Gone
		default:
			want[i] = s.file(d, request(refs[i]), driver.Held)
		}
		refs[i].TTL *= 3
	}
	filed := time.Now()
	for _, i := range queued { // last, since their deadline is near
		want[i] = s.file(d, waiting(refs[i]), driver.Queued)
	}
	return refs, want, filed
}

// renewMany renews claims in one call, asserts their phases and tokens, and returns when it began.
// A waiter that is gone is not judged any more if the answer came after its deadline: the machine
// is too slow then, not the backend.
func (s *suite) renewMany(d driver.Driver, refs []driver.Ref, want []driver.State, deadline time.Time) time.Time {
	s.Helper()
	begun := time.Now()
	var states []driver.State
	_, err := s.ask(func() (err error) { states, err = d.Renew(s.ctx, refs); return err })
	if err != nil || len(states) != len(refs) {
		s.Fatalf("Renew of %d claims = %d states, %v", len(refs), len(states), err)
	}
	for i, st := range states {
		if st.Phase == driver.Unknown && !s.virtual { // a server was late
			st = s.look(d, refs[i])
		}
		if want[i].Phase == driver.Queued && st.Phase == driver.Gone && s.Caps.Lease && time.Now().After(deadline) {
			want[i] = st
		}
		if st.Phase != want[i].Phase || st.Token != want[i].Token {
			s.Fatalf("claim %d of %d is %v with token %d, want %v with %d", i, len(refs), st.Phase, st.Token, want[i].Phase, want[i].Token)
		}
	}
	return begun
}

// filingRestarts: to file a claim again restarts its deadline, held or queued. If it is filed
// with another TTL, a backend may keep the first one as long as Until says so.
func filingRestarts(s *suite) {
	d, other := s.open(), s.open()
	holder, waiter, changed := s.brief("k"), s.brief("waited"), s.brief("changed")
	s.file(d, request(s.ref("waited")), driver.Held)
	s.file(d, request(changed), driver.Held)
	changed.TTL = 20 * s.TTL
	st := s.file(d, request(changed), driver.Held)
	for range 6 { // two heartbeats, which is longer than TTL
		s.file(d, request(holder), driver.Held)
		s.file(other, waiting(waiter), driver.Queued)
		elapse(driver.Heartbeat(s.TTL) / 3)
	}
	s.renew(other, waiter, driver.Queued)
	s.file(other, request(s.ref("k")), driver.Gone)
	s.renew(d, holder, driver.Held)
	if !s.Caps.Lease || time.Now().Before(st.Until) {
		s.file(other, request(s.ref("changed")), driver.Gone)
	}
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

// barLasts: an ID that was barred stays barred, since its call may be on its way for long:
// whatever the release found, and however many IDs of a key there are.
func barLasts(s *suite) {
	d := s.open()
	var late []driver.Ref
	release := func(r driver.Ref, want driver.Phase) {
		s.Helper()
		r.Unsettled = true
		s.release(d, r, want)
		r.Unsettled = false
		late = append(late, r)
	}
	holder := s.ref("queued")
	s.file(d, request(holder), driver.Held)
	for range 2 {
		release(s.ref("absent"), driver.Gone)
		held, queued := s.ref("held"), s.ref("queued")
		s.file(d, request(held), driver.Held)
		release(held, driver.Held)
		s.file(d, waiting(queued), driver.Queued)
		release(queued, driver.Queued)
	}
	wait := 3 * time.Second
	if s.virtual {
		wait = driver.BarFor(holder.TTL) - time.Second
	}
	elapse(wait)
	s.release(d, holder, driver.Held)
	for _, other := range []driver.Driver{d, s.open()} {
		for _, r := range late {
			s.file(other, request(r), driver.Gone)
			s.file(other, waiting(r), driver.Gone)
		}
	}
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
