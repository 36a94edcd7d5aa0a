package drivertest

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/xerrors"
)

// admin returns the Admin of d, or nil if the harness says that there is none.
func (s *suite) admin(d driver.Driver) driver.Admin {
	s.Helper()
	a, ok := d.(driver.Admin)
	if ok == s.NoAdmin {
		s.Fatalf("the driver is an Admin: %v, the harness says %v", ok, !s.NoAdmin)
	}
	return a
}

func adminList(s *suite) {
	d := s.open()
	a := s.admin(d)
	if a == nil {
		return
	}
	var want []string
	for i := range 25 {
		key := fmt.Sprintf("list:%02d", i)
		want = append(want, key)
		s.submit(d, request(s.ref(key)), driver.Held)
	}
	s.submit(d, request(s.ref("else")), driver.Held)
	freed := s.ref("list:free")
	s.submit(d, request(freed), driver.Held)
	s.release(d, freed, driver.Held)

	var got []string
	for cursor, pages := "", 0; ; pages++ {
		keys, next := s.list(a, "list:", cursor, 10)
		if pages > 1000 {
			s.Fatalf("%d pages", pages)
		}
		if len(keys) > 10 {
			s.Errorf("%d keys on a page of 10", len(keys))
		}
		got = append(got, keys...)
		if next == "" {
			break
		}
		cursor = next
	}
	slices.Sort(got)
	got = slices.Compact(got)
	if !slices.Equal(got, want) {
		s.Errorf("listed %q, want %q", got, want)
	}
}

// badCursor: a cursor that List has not returned is an error of the caller, and not the end of
// the list, or its start.
func badCursor(s *suite) {
	d := s.open()
	a := s.admin(d)
	if a == nil {
		return
	}
	s.submit(d, request(s.ref("k")), driver.Held)
	for _, cursor := range []string{"x", "k", " ", "\x00", "\xff\xfe", "-1", "-1 -1", "-1\x1f0", "0\x1f99999999999999999999", "99999999 0 0 ", "99999999\x1f0"} {
		keys, next, err := a.List(s.ctx, "", cursor, 10)
		if !errors.Is(err, xerrors.ErrInvalidConfig) || driver.ClassOf(err) != driver.Fatal || len(keys) > 0 || next != "" {
			s.Errorf("the cursor %q: %q, %q, %v", cursor, keys, next, err)
		}
	}
}

func adminInspect(s *suite) {
	d := s.open()
	a := s.admin(d)
	if a == nil {
		return
	}
	if claims := s.inspect(a, "free"); len(claims) != 0 {
		s.Errorf("a free key: %v", claims)
	}
	info := driver.Info{Owner: "api-7", Host: "host", PID: 311, Purpose: "purpose", Both: true}
	refs := []driver.Ref{s.ref("k"), s.ref("k"), s.ref("k"), s.ref("k")}
	st := driver.State{}
	for i, r := range refs {
		got := s.acquire(d, driver.Request{Ref: r, Wait: true, Info: info})
		if i == 0 {
			st = got
		}
	}
	claims := s.inspect(a, "k")
	if len(claims) < 1 {
		s.Fatalf("Inspect = %v", claims)
	}
	if c := claims[0]; c.Phase != driver.Held || c.Token != st.Token || c.Info != info || c.ID != refs[0].ID {
		s.Errorf("the holder is shown as %v %+v", c, c.Info)
	}
	if left := claims[0].Remaining; s.Caps.Lease && (left <= 0 || left > refs[0].TTL) {
		s.Errorf("%v of a lease of %v are left", left, refs[0].TTL)
	}
	if !s.Caps.FIFO {
		return
	}
	if len(claims) != len(refs) {
		s.Fatalf("%d claims are shown of %d", len(claims), len(refs))
	}
	for i, c := range claims[1:] {
		if c.Phase != driver.Queued || c.ID != refs[i+1].ID || c.Token != 0 {
			s.Errorf("place %d of the queue is shown as %v", i, c)
		}
	}
}

// lookAtHolder: a HolderFinder returns a holder and counts the waiters, of a short queue and of a long one.
func lookAtHolder(s *suite) {
	d, other := s.open(), s.open()
	finder, ok := d.(driver.HolderFinder)
	if !ok {
		return // the engine uses Inspect
	}
	look := func(key, except, holder string, token int64, queue int) {
		s.Helper()
		c, n, err := s.lookAt(finder, key, except)
		if err != nil || c.ID != holder || c.Token != token || n != queue || (c.Phase == driver.Held) != (holder != "") {
			s.Errorf("%s without %q is held by %v, and %d wait: %v; want %s, token %d, and %d", key, except, c, n, err, holder, token, queue)
		}
	}
	look("free", "", "", 0, 0)
	holder := s.ref("k")
	st := s.submit(other, request(holder), driver.Held)
	look("k", newID(), holder.ID, st.Token, 0)
	var queue []driver.Ref
	for i := range 20 {
		waiter := s.ref("k")
		s.submit(d, waiting(waiter), driver.Queued)
		queue = append(queue, waiter)
		s.keepQueued(d, queue)
		look("k", "", holder.ID, st.Token, i+1)
		look("k", waiter.ID, holder.ID, st.Token, i)
	}
	if !s.Caps.Supports(driver.Shared) {
		return
	}
	s.submit(other, shared(s.ref("readers")), driver.Held)
	for range 20 {
		s.submit(d, shared(s.ref("readers")), driver.Held)
	}
	s.submit(d, waiting(s.ref("readers")), driver.Queued)
	c, n, err := s.lookAt(finder, "readers", "")
	if err != nil || c.Phase != driver.Held || c.Mode != driver.Shared || n != 1 {
		s.Errorf("21 readers and a writer: held by %v, and %d wait: %v", c, n, err)
	}
}

func (s *suite) lookAt(finder driver.HolderFinder, key, except string) (holder driver.Claim, waiting int, err error) {
	_, err = s.askOnce(func() (err error) { holder, waiting, err = finder.Look(s.ctx, key, except); return err })
	return holder, waiting, err
}

func (s *suite) list(a driver.Admin, prefix, cursor string, limit int) (keys []string, next string) {
	s.Helper()
	_, err := s.askOnce(func() (err error) { keys, next, err = a.List(s.ctx, prefix, cursor, limit); return err })
	if err != nil {
		s.Fatalf("List(%q) from %q: %v", prefix, cursor, err)
	}
	return keys, next
}

func (s *suite) inspect(a driver.Admin, key string) []driver.Claim {
	s.Helper()
	var claims []driver.Claim
	_, err := s.askOnce(func() (err error) { claims, err = a.Inspect(s.ctx, key); return err })
	if err != nil {
		s.Fatalf("Inspect(%q): %v", key, err)
	}
	return claims
}

// evict evicts a claim and asserts the phase that was found.
func (s *suite) evict(a driver.Admin, key, id string, token int64, want driver.Phase) {
	s.Helper()
	var st driver.State
	again, err := s.askOnce(func() (err error) { st, err = a.Evict(s.ctx, key, id, token); return err })
	if err != nil {
		s.Fatalf("Evict(%q): %v", key, err)
	}
	isRepeated := again && st.Phase == driver.Gone
	if st.Phase != want && !isRepeated { // carried out at once, and not answered
		s.Fatalf("Evict(%q) found %v, want %v", key, st.Phase, want)
	}
}

func adminEvict(s *suite) {
	d, other := s.open(), s.open()
	a := s.admin(d)
	if a == nil {
		return
	}
	holder, waiter := s.ref("k"), s.ref("k")
	st := s.submit(other, request(holder), driver.Held)
	evict := func(id string, token int64, want driver.Phase) {
		s.Helper()
		s.evict(a, "k", id, token, want)
	}
	if s.NoEvict {
		if _, err := a.Evict(s.ctx, "k", holder.ID, st.Token); !errors.Is(err, driver.ErrUnsupported) {
			s.Errorf("Evict: %v", err)
		}
		s.renew(other, holder, driver.Held)
		return
	}
	s.submit(other, waiting(waiter), driver.Queued)
	evict(holder.ID, st.Token-1, driver.Gone) // a stale token
	evict(newID(), st.Token, driver.Gone)     // another claim
	s.renew(other, holder, driver.Held)
	evict(holder.ID, st.Token, driver.Held)
	s.renew(other, holder, driver.Gone)
	next := s.granted(other, waiter, s.patience())
	if s.Caps.Fencing && next.Token <= st.Token {
		s.Errorf("token %d after %d was evicted", next.Token, st.Token)
	}
	queued := s.ref("k")
	s.submit(other, waiting(queued), driver.Queued)
	evict(queued.ID, 0, driver.Queued)
	s.renew(other, queued, driver.Gone)
	s.renew(other, waiter, driver.Held)
}

// evictedAsksAgain: a Driver whose claim was evicted through another Driver can acquire the key
// again, although it was not notified and its evicted lease would have lasted long.
func evictedAsksAgain(s *suite) {
	d, other := s.open(), s.open()
	a := s.admin(d)
	if a == nil || s.NoEvict {
		return
	}
	for _, again := range []func(driver.Ref) driver.Request{request, waiting} {
		key := "k"
		for range 3 {
			evicted := s.ref(key)
			first := s.submit(other, request(evicted), driver.Held)
			s.evict(a, key, evicted.ID, first.Token, driver.Held)
			next := s.ref(key)
			second := s.submit(other, again(next), driver.Held)
			if s.Caps.Fencing && second.Token <= first.Token {
				s.Errorf("token %d after %d was evicted", second.Token, first.Token)
			}
			s.renew(other, evicted, driver.Gone)
			s.release(other, evicted, driver.Gone)
			s.renew(other, next, driver.Held)
			s.release(other, next, driver.Held)
		}
	}
}

// evictedIsStoredOnce: a claim that was evicted through another Driver and is submitted again, with the same ID, is Gone,
// or it is granted again with a new token. What is stored is what the answer says, and its release leaves nothing. A
// Driver that follows its claims learns of the eviction before, while or after it submits.
func evictedIsStoredOnce(s *suite) {
	d, other := s.open(), s.open()
	a := s.admin(d)
	if a == nil || s.NoEvict {
		return
	}
	s.submit(other, request(s.ref("another key")), driver.Held) // a lease that both share does not end with the claim
	for round := range 8 {
		r := s.ref("k")
		first := s.submit(other, request(r), driver.Held)
		elapse(time.Duration(round/2) * 20 * time.Millisecond)
		s.evict(a, "k", r.ID, first.Token, driver.Held)
		again := s.acquire(other, driver.Request{Ref: r, Wait: round%2 == 1})
		if again.Phase == driver.Held && s.Caps.Fencing && again.Token <= first.Token {
			s.Errorf("token %d after %d was evicted", again.Token, first.Token)
		}
		s.isStoredOnce(a, r, again)
		if now := s.renew(other, r, again.Phase); now.Token != again.Token {
			s.Errorf("token %d became %d by a renewal", again.Token, now.Token)
		}
		s.release(other, r, again.Phase)
		s.isStoredOnce(a, r, driver.State{Phase: driver.Gone})
	}
}

// isStoredOnce asserts that a claim is held with its token, or that nothing is stored if it is Gone. Where a majority of
// several servers has said so, the others may be late.
func (s *suite) isStoredOnce(a driver.Admin, r driver.Ref, st driver.State) {
	s.Helper()
	if st.Phase == driver.Gone && s.Quorum {
		s.eventually(s.Slack, "nothing is stored of a claim that is gone", func() bool { return len(s.inspect(a, r.Key)) == 0 })
		return
	}
	claims := s.inspect(a, r.Key)
	isGone := st.Phase == driver.Gone && len(claims) == 0
	isHeld := st.Phase == driver.Held && len(claims) == 1 && claims[0].ID == r.ID && claims[0].Token == st.Token
	if !isGone && !isHeld {
		s.Errorf("%v are stored of a claim that is %v with token %d", claims, st.Phase, st.Token)
	}
}
