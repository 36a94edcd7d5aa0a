package drivertest

import (
	"errors"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// batch checks a driver.Batcher. A driver that is none passes.
func batch(s *suite) {
	d, other := s.open(), s.open()
	b, ok := d.(driver.Batcher)
	keys := []string{"{tag}a", "{tag}b", "{tag}c"}
	if !ok || !b.CanBatch(keys) {
		return
	}
	claims := s.requests(keys)
	before := time.Now()
	held := s.acquireBatch(b, claims, 3)
	for i, st := range held {
		if (st.Token > 0) != s.Caps.Fencing {
			s.Errorf("token %d, though Fencing is %v", st.Token, s.Caps.Fencing)
		}
		s.checkUntil(st, before, claims[i].TTL)
		s.submit(other, request(s.ref(keys[i])), driver.Gone)
	}
	for i, st := range s.acquireBatch(b, claims, 3) { // again, with the same IDs
		if st.Token != held[i].Token {
			s.Errorf("%q: token %d became %d by submitting again", keys[i], held[i].Token, st.Token)
		}
	}
	waiter := s.ref(keys[1])
	s.submit(other, waiting(waiter), driver.Queued)
	s.releaseBatch(b, claims, driver.Held)
	if st := s.renew(other, waiter, driver.Held); s.Caps.Fencing && st.Token <= held[1].Token {
		s.Errorf("token %d after %d", st.Token, held[1].Token)
	}

	claims = s.requests(keys) // the waiter holds the second key
	st := s.acquireBatch(b, claims, 1)[0]
	if s.Caps.Fencing && st.Token <= held[0].Token {
		s.Errorf("token %d after %d", st.Token, held[0].Token)
	}
	for _, r := range claims[1:] {
		s.renew(d, r.Ref, driver.Gone) // nothing was stored
	}
	s.submit(other, request(s.ref(keys[2])), driver.Held)
	s.release(d, claims[0].Ref, driver.Held)
	s.release(other, waiter, driver.Held)

	fixed := s.requests([]string{"{tag}f", "{tag}g"})
	for i := range fixed {
		fixed[i].Fixed = true
	}
	_, err := s.ask(func() error { _, err := b.AcquireBatch(s.ctx, fixed); return err })
	if errors.Is(err, driver.ErrUnsupported) {
		s.renew(d, fixed[0].Ref, driver.Gone)
	} else {
		if err != nil {
			s.Fatalf("AcquireBatch of fixed claims: %v", err)
		}
		s.acquireBatch(b, fixed, 2)
		s.releaseBatch(b, fixed, driver.Held)
	}

	late := s.requests([]string{"{tag}d", "{tag}e"})
	tombstoned := late[0].Ref
	tombstoned.Unanswered = true
	s.release(d, tombstoned, driver.Gone)
	s.acquireBatch(b, late, 0)
	s.renew(d, late[1].Ref, driver.Gone)
	s.releaseBatch(b, late, driver.Gone)
}

// requests returns a new claim for each key.
func (s *suite) requests(keys []string) (rs []driver.Request) {
	for _, key := range keys {
		rs = append(rs, request(s.ref(key)))
	}
	return rs
}

// acquireBatch submits claims and asserts how many of them are held.
func (s *suite) acquireBatch(b driver.Batcher, rs []driver.Request, held int) []driver.State {
	s.Helper()
	var states []driver.State
	_, err := s.ask(func() (err error) { states, err = b.AcquireBatch(s.ctx, rs); return err })
	if err != nil || len(states) != len(rs) {
		s.Fatalf("AcquireBatch = %v, %v", states, err)
	}
	for i, st := range states {
		if want := map[bool]driver.Phase{true: driver.Held, false: driver.Gone}[i < held]; st.Phase != want {
			s.Fatalf("AcquireBatch: %q is %v, want %v", rs[i].Key, st.Phase, want)
		}
	}
	return states
}

// releaseBatch releases claims, alone if the batch leaves them, and asserts the phase that was found.
func (s *suite) releaseBatch(b driver.Batcher, rs []driver.Request, want driver.Phase) {
	s.Helper()
	var refs []driver.Ref
	for _, r := range rs {
		refs = append(refs, r.Ref)
	}
	var states []driver.State
	again, err := s.ask(func() (err error) { states, err = b.ReleaseBatch(s.ctx, refs); return err })
	if err != nil || len(states) != len(refs) {
		s.Fatalf("ReleaseBatch = %v, %v", states, err)
	}
	for i, st := range states {
		if st.Phase == driver.Unknown {
			d, _ := b.(driver.Driver)
			_, err := s.ask(func() (err error) { st, err = d.Release(s.ctx, refs[i]); return err })
			if err != nil {
				s.Fatalf("Release(%q): %v", refs[i].Key, err)
			}
		}
		if repeated := again && st.Phase == driver.Gone; st.Phase != want && !repeated {
			s.Fatalf("ReleaseBatch found %q %v, want %v", refs[i].Key, st.Phase, want)
		}
	}
}
