package drivertest

import (
	"errors"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// fenceIncreases: every grant of a key has a greater token than all grants before, whether it came
// from submitting, from a handoff, or after the key was free for a long time.
func fenceIncreases(s *suite) {
	if !s.Caps.Fencing {
		s.submit(s.open(), request(s.ref("k")), driver.Held)
		return // Submitting asserts that there is no token
	}
	ds := []driver.Driver{s.open(), s.open()}
	last := int64(0)
	check := func(st driver.State) {
		s.Helper()
		if st.Token <= last {
			s.Fatalf("token %d after %d", st.Token, last)
		}
		last = st.Token
	}
	for i := 0; i < s.Grants; i += 2 {
		holder, waiter := s.ref("k"), s.ref("k")
		check(s.submit(ds[0], request(holder), driver.Held))
		if i%64 != 0 {
			s.release(ds[0], holder, driver.Held)
			check(s.submit(ds[1], request(waiter), driver.Held))
		} else {
			s.submit(ds[1], waiting(waiter), driver.Queued)
			s.release(ds[0], holder, driver.Held)
			check(s.granted(ds[1], waiter, s.patience()))
		}
		s.release(ds[1], waiter, driver.Held)
	}
}

func fenceRange(s *suite) {
	d := s.open()
	r := driver.Request{Ref: s.ref("k"), Tokens: 100}
	if !s.Caps.TokenRange {
		if _, err := d.Acquire(s.ctx, r); !errors.Is(err, driver.ErrUnsupported) {
			s.Errorf("a range of fences: %v", err)
		}
		s.submit(d, request(s.ref("k")), driver.Held) // nothing was stored
		return
	}
	st := s.submit(d, r, driver.Held)
	s.showsTokens(d, st.Token, st.Token+99)
	queued := driver.Request{Ref: s.ref("k"), Tokens: 100, Wait: true}
	s.submit(d, queued, driver.Queued)
	s.release(d, r.Ref, driver.Held)
	second := s.granted(d, queued.Ref, s.patience())
	s.showsTokens(d, second.Token, second.Token+99)
	s.release(d, queued.Ref, driver.Held)
	third := s.submit(d, request(s.ref("k")), driver.Held)
	s.showsTokens(d, third.Token, 0)
	if second.Token < st.Token+100 || third.Token < second.Token+100 {
		s.Errorf("tokens %d, %d, %d do not leave room for 100 each", st.Token, second.Token, third.Token)
	}
}

// showsTokens checks which tokens Inspect returns for the holder.
func (s *suite) showsTokens(d driver.Driver, first, last int64) {
	s.Helper()
	admin, ok := d.(driver.Admin)
	if !ok {
		return
	}
	claims := s.inspect(admin, "k")
	if len(claims) == 0 {
		s.Fatal("Inspect shows no holder")
	}
	if c := claims[0]; c.Token != first || c.LastToken != last {
		s.Errorf("the holder has the tokens %d to %d, want %d to %d", c.Token, c.LastToken, first, last)
	}
}
