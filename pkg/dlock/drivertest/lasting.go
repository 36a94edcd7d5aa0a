package drivertest

import (
	"fmt"
	"slices"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// bigBatch: one call renews every claim that it names, however many there are, held or queued, and
// result i answers ref i.
func bigBatch(s *suite) {
	d := s.open()
	refs, want := s.submitMany(d, 300)
	s.renewMany(d, refs, want, time.Time{}) // changes every TTL, which may take long: before there are waiters
	s.untilShown(func() (void string) { return s.batchKeepsWaiters(d, refs, want) })
	a := s.admin(d)
	for i, r := range refs {
		if want[i].Phase != driver.Held || a == nil || !s.Caps.Lease {
			continue
		}
		claims := s.inspect(a, r.Key)
		if len(claims) != 1 {
			s.Fatalf("Inspect(%q) = %v", r.Key, claims)
		}
		if claims[0].Remaining < r.TTL/2 {
			s.Fatalf("claim %d of %d was renewed for %v, and %v are left", i, len(refs), r.TTL, claims[0].Remaining)
		}
	}
}

// isWaiterOfBatch reports whether claim i of a big batch waits.
func isWaiterOfBatch(i int) bool { return i%25 == 3 }

// submitMany submits n claims, some of which are not stored, in an order that differs when
// reversed. It returns them with three times their TTL. It does not submit the claims that are to
// wait, because their deadline is near: another driver has their keys.
func (s *suite) submitMany(d driver.Driver, n int) ([]driver.Ref, []driver.State) {
	s.Helper()
	other := s.open()
	refs, want := make([]driver.Ref, n), make([]driver.State, n)
	for i := range refs {
		refs[i] = s.ref(fmt.Sprint("k", i))
		refs[i].TTL, refs[i].QueueTTL = 2*refs[i].TTL, 0 // for as long as a slow machine needs
		want[i].Phase = driver.Gone
		switch {
		case isWaiterOfBatch(i):
			holder := refs[i]
			holder.ID = newID()
			s.submit(other, request(holder), driver.Held)
		case i%25 != 4 && i%25 != 17:
			want[i] = s.submit(d, request(refs[i]), driver.Held)
		}
		refs[i].TTL *= 3
	}
	return refs, want
}

// batchKeepsWaiters is one trial of bigBatch. It submits the waiters, and renews all claims for
// longer than a waiter lives without renewal. It is void if a waiter may have missed its heartbeat,
// or if a batch took much of a heartbeat.
func (s *suite) batchKeepsWaiters(d driver.Driver, refs []driver.Ref, want []driver.State) (void string) {
	beat := driver.Heartbeat(refs[0].TTL)
	renewed := time.Now()
	for i := range refs {
		if isWaiterOfBatch(i) {
			refs[i].ID = newID() // that of a void trial may still be there
			want[i] = s.submit(d, waiting(refs[i]), driver.Queued)
		}
	}
	for range 4 {
		begun := time.Now()
		s.renew(d, refs[0], driver.Held) // the control
		one := time.Since(begun)
		before := renewed
		renewed = time.Now()
		if !s.renewMany(d, refs, want, before.Add(beat*9/10)) {
			return "a waiter was renewed too late"
		}
		// One call for all costs less than a call for each.
		took := time.Since(renewed)
		if took > beat/3 && took > time.Duration(len(refs))*one {
			return fmt.Sprintf("to renew %d claims took %v, and one claim %v", len(refs), took, one)
		}
		elapse(time.Until(renewed.Add(beat / 3)))
	}
	for i, r := range refs {
		if !isWaiterOfBatch(i) {
			continue
		}
		st := s.look(d, r) // one by one: what the batch said may be wrong
		if st.Phase != driver.Queued && s.isLate(renewed, beat) {
			return "a waiter was renewed too late after the last batch"
		}
		if st.Phase != driver.Queued {
			s.Fatalf("claim %d of %d was renewed as a waiter, and is %v", i, len(refs), st.Phase)
		}
	}
	return ""
}

// renewMany renews claims in one call, and asserts their phases and tokens. It returns false if a
// waiter is gone and the answer came after due: that is not a fault of the backend.
func (s *suite) renewMany(d driver.Driver, refs []driver.Ref, want []driver.State, due time.Time) bool {
	s.Helper()
	var states []driver.State
	var last time.Time
	_, err := s.ask(func() (err error) { last = time.Now(); states, err = d.Renew(s.ctx, refs); return err })
	if err != nil || len(states) != len(refs) {
		s.Fatalf("Renew of %d claims = %d states, %v", len(refs), len(states), err)
	}
	isUnknown := func(st driver.State) bool { return st.Phase == driver.Unknown }
	isLate := slices.ContainsFunc(states, isUnknown) && s.stalled(last)
	for i, st := range states {
		if isUnknown(st) && isLate { // no answer, because the machine stalled
			st = s.look(d, refs[i])
		}
		if want[i].Phase == driver.Queued && st.Phase == driver.Gone && s.Caps.Lease && time.Now().After(due) {
			return false
		}
		if st.Phase != want[i].Phase || st.Token != want[i].Token {
			s.Fatalf("claim %d of %d is %v with token %d, want %v with %d", i, len(refs), st.Phase, st.Token, want[i].Phase, want[i].Token)
		}
	}
	return true
}

// resubmissionRestarts: submitting a claim again restarts its deadline, held or queued. If it is
// submitted with another TTL, a backend may keep the first one, as long as Until is consistent.
func resubmissionRestarts(s *suite) { s.untilShown(s.keptBySubmitting) }

// keptBySubmitting is one trial of resubmissionRestarts. It is void if a failure can be explained
// by a claim that was submitted too late. It compares tokens and places as well as deadlines,
// because the same call stores an ended claim again.
func (s *suite) keptBySubmitting() (void string) {
	d, other := s.open(), s.open()
	holder, waiter, changed := s.brief(newID()), s.brief(newID()), s.brief(newID()) // a void trial may leave claims
	behind := s.brief(waiter.Key)
	s.submit(d, request(s.ref(waiter.Key)), driver.Held)
	s.submit(d, request(changed), driver.Held)
	changed.TTL = 20 * s.TTL
	long := s.submit(d, request(changed), driver.Held)

	last := time.Now()
	held := s.submit(d, request(holder), driver.Held)
	queued := s.submit(other, waiting(waiter), driver.Queued)
	s.submit(other, waiting(behind), driver.Queued)
	again := func(call func(driver.Driver, driver.Request) driver.State) (wrong string) {
		st := s.acquire(other, request(s.ref(holder.Key)))
		if st.Phase != driver.Gone {
			return fmt.Sprintf("the key of the holder is %v for another", st.Phase)
		}
		st = call(d, request(holder))
		if st.Phase != driver.Held || st.Token != held.Token {
			return fmt.Sprintf("the holder is %v with token %d, want token %d", st.Phase, st.Token, held.Token)
		}
		st = call(other, waiting(waiter))
		if st.Phase != driver.Queued || (s.Caps.FIFO && st.Ahead != queued.Ahead) {
			return fmt.Sprintf("the waiter is %v behind %d, want %d", st.Phase, st.Ahead, queued.Ahead)
		}
		st = s.look(other, behind)
		if st.Phase != driver.Queued {
			return fmt.Sprintf("the waiter behind is %v", st.Phase)
		}
		return ""
	}
	beat, end := driver.Heartbeat(s.TTL), last.Add(2*s.TTL)
	for n, isOver := 1, false; !isOver; n++ {
		elapse(beat * 9 / 20)
		before := last
		last = time.Now()
		// Three steps are longer than a heartbeat: a claim that was stored again after it had
		// ended, and not restarted since, has ended again by the last call, which stores nothing.
		isOver = n%3 == 0 && !last.Before(end)
		call := s.acquire
		if isOver {
			call = func(d driver.Driver, r driver.Request) driver.State { return s.look(d, r.Ref) }
		}
		wrong := again(call)
		if wrong != "" && s.isLate(before, beat) {
			return wrong
		}
		if wrong != "" {
			s.Fatalf("submitted again in time: %s", wrong)
		}
	}
	st := s.acquire(other, request(s.ref(changed.Key)))
	if st.Phase != driver.Gone && (!s.Caps.Lease || time.Now().Before(long.Until)) {
		s.Fatalf("the key of a holder that was submitted again for %v is %v for another", changed.TTL, st.Phase)
	}
	return ""
}

// fenceOutlastsLeases: a grant after a lease has ended also has a greater token.
func fenceOutlastsLeases(s *suite) {
	if !s.Caps.Lease || !s.Caps.Fencing {
		return // FenceIncreases has the rest
	}
	d, other := s.open(), s.open()
	first := s.submit(d, request(s.brief("k")), driver.Held)
	next := s.takes(other, "k", s.TTL+s.Slack)
	if st := s.renew(other, next, driver.Held); st.Token <= first.Token {
		s.Errorf("token %d after %d, whose lease has ended", st.Token, first.Token)
	}
}

// tombstoneLasts: the tombstone of an ID stays, because its call may be in flight for a long time,
// whatever the release found and however many IDs a key has.
func tombstoneLasts(s *suite) {
	d := s.open()
	var late []driver.Ref
	release := func(r driver.Ref, want driver.Phase) {
		s.Helper()
		r.Unanswered = true
		s.release(d, r, want)
		r.Unanswered = false
		late = append(late, r)
	}
	holder := s.ref("queued")
	s.submit(d, request(holder), driver.Held)
	for range 2 {
		release(s.ref("absent"), driver.Gone)
		held, queued := s.ref("held"), s.ref("queued")
		s.submit(d, request(held), driver.Held)
		release(held, driver.Held)
		s.submit(d, waiting(queued), driver.Queued)
		release(queued, driver.Queued)
	}
	wait := 3 * time.Second
	if s.virtual {
		wait = driver.TombstoneTTL(holder.TTL) - time.Second
	}
	elapse(wait)
	s.release(d, holder, driver.Held)
	for _, other := range []driver.Driver{d, s.open()} {
		for _, r := range late {
			s.submit(other, request(r), driver.Gone)
			s.submit(other, waiting(r), driver.Gone)
		}
	}
}

// groupLeases: each claim that holds a key together with others has its own lease: one that is
// renewed stays, and one that is not renewed makes room.
func groupLeases(s *suite) {
	if !s.Caps.Lease {
		return // the process is the lease; Crash ends it
	}
	for mode, ask := range map[driver.Mode]func(driver.Ref) driver.Request{
		driver.Shared: shared,
		driver.Permit: func(r driver.Ref) driver.Request { return permit(r, 2) },
	} {
		if s.Caps.Supports(mode) {
			s.untilShown(func() string { return s.keepsOwnLease(mode, ask) })
		}
	}
}

// keepsOwnLease is one trial of groupLeases. It is void if the claims that are to stay may have been
// renewed too late.
func (s *suite) keepsOwnLease(mode driver.Mode, ask func(driver.Ref) driver.Request) (void string) {
	const late = "a claim was renewed too late"
	key := newID() // a void trial may leave claims
	d, other := s.open(), s.open()
	silent, renewed, next := s.brief(key), s.brief(key), s.ref(key)
	request := ask(next)
	if mode == driver.Shared {
		request = waiting(next) // a writer
	}
	s.submit(d, ask(silent), driver.Held)
	last := time.Now()
	s.submit(other, ask(renewed), driver.Held)
	if st := s.acquire(other, request); st.Phase != driver.Queued {
		if !s.isLate(last, s.TTL) {
			s.Fatalf("Acquire(%q) = %v, want queued", key, st.Phase)
		}
		return late
	}
	// kept renews both, and returns false if that was too late for a conclusion.
	beat := min(s.TTL, driver.Heartbeat(next.TTL))
	kept := func(want ...driver.Phase) bool {
		s.Helper()
		before := last
		last = time.Now()
		holder, waiter := s.look(other, renewed).Phase, s.look(other, next).Phase
		isWanted := holder == driver.Held && slices.Contains(want, waiter)
		if !isWanted && !s.isLate(before, beat) {
			s.Fatalf("%s %q: the holder is %v, and the waiter %v", mode, key, holder, waiter)
		}
		return isWanted
	}
	want := []driver.Phase{driver.Queued}
	if mode == driver.Permit {
		want = append(want, driver.Held) // when the silent one has made room
	}
	for end := time.Now().Add(2 * s.TTL); time.Now().Before(end); {
		elapse(beat / 3)
		if !kept(want...) {
			return late
		}
	}
	s.renew(d, silent, driver.Gone)
	if mode == driver.Shared {
		if !kept(driver.Queued) {
			return late
		}
		s.release(other, renewed, driver.Held)
	}
	s.granted(other, next, s.patience())
	return ""
}

// untilShown repeats a trial until it is not void. A trial that is void says why: a claim was
// renewed too late, which a busy machine explains once, and a backend that is slow itself each time.
func (s *suite) untilShown(trial func() (void string)) {
	s.Helper()
	const trials = 20
	var void string
	for range trials {
		void = trial()
		if void == "" {
			return
		}
	}
	s.Fatalf("nothing was shown in %d trials: in the last one, %s", trials, void)
}

// isLate reports whether a claim that was renewed, and lives for some time from then, may have
// ended. It counts from our own calls, since a backend that does not renew says so in its Until, too.
func (s *suite) isLate(renewed time.Time, lifetime time.Duration) bool {
	return s.Caps.Lease && time.Since(renewed) > lifetime*9/10
}
