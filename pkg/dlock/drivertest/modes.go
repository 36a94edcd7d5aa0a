package drivertest

import (
	"errors"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

func shared(r driver.Ref) driver.Request {
	return driver.Request{Ref: r, Mode: driver.Shared, Wait: true}
}

func permit(r driver.Ref, limit int) driver.Request {
	return driver.Request{Ref: r, Mode: driver.Permit, Limit: limit, Wait: true}
}

// unsupportedModes: a mode that Caps does not include is refused, and nothing is stored.
func unsupportedModes(s *suite) {
	d := s.open()
	for _, r := range []driver.Request{shared(s.ref("k")), permit(s.ref("k"), 2), {Ref: s.ref("k"), Mode: 77}} {
		if s.Caps.Supports(r.Mode) {
			continue
		}
		if _, err := d.Acquire(s.ctx, r); !errors.Is(err, driver.ErrUnsupported) {
			s.Errorf("mode %v: %v", r.Mode, err)
		}
	}
	s.submit(d, request(s.ref("k")), driver.Held)
}

func readersTogether(s *suite) {
	if !s.Caps.Supports(driver.Shared) {
		return // UnsupportedModes asserts the refusal
	}
	d, other := s.open(), s.open()
	r1, r2, w := s.ref("k"), s.ref("k"), s.ref("k")
	s.submit(d, shared(r1), driver.Held)
	s.submit(other, shared(r2), driver.Held)
	s.submit(d, request(s.ref("k")), driver.Gone)
	s.submit(d, waiting(w), driver.Queued)
	s.release(d, r1, driver.Held)
	s.renew(d, w, driver.Queued)
	s.release(other, r2, driver.Held)
	s.granted(d, w, s.patience())
	s.submit(other, driver.Request{Ref: s.ref("k"), Mode: driver.Shared}, driver.Gone)

	// Readers that queue behind a writer are granted together.
	r3, r4 := s.ref("k"), s.ref("k")
	s.submit(d, shared(r3), driver.Queued)
	s.submit(other, shared(r4), driver.Queued)
	s.release(d, w, driver.Held)
	s.granted(d, r3, s.patience())
	s.granted(other, r4, s.patience())
}

// writerIsNotStarved: readers that come after a waiting writer queue behind it.
func writerIsNotStarved(s *suite) {
	if !s.Caps.Supports(driver.Shared) {
		return
	}
	d := s.open()
	reader, writer := s.ref("k"), s.ref("k")
	s.submit(d, shared(reader), driver.Held)
	s.submit(d, waiting(writer), driver.Queued)
	if !s.Caps.FIFO {
		s.release(d, reader, driver.Held)
		s.granted(d, writer, s.patience())
		return
	}
	late := s.ref("k")
	s.submit(d, driver.Request{Ref: s.ref("k"), Mode: driver.Shared}, driver.Gone)
	s.submit(d, shared(late), driver.Queued)
	s.release(d, reader, driver.Held)
	s.granted(d, writer, s.patience())
	s.renew(d, late, driver.Queued)
	s.release(d, writer, driver.Held)
	s.granted(d, late, s.patience())
}

func permitsWithinLimit(s *suite) {
	if !s.Caps.Supports(driver.Permit) {
		return
	}
	d, other := s.open(), s.open()
	p := []driver.Ref{s.ref("k"), s.ref("k"), s.ref("k"), s.ref("k")}
	s.submit(d, permit(p[0], 3), driver.Held)
	s.submit(other, permit(p[1], 3), driver.Held)
	s.submit(d, permit(p[2], 3), driver.Held)
	s.submit(other, permit(p[3], 3), driver.Queued)
	s.submit(d, driver.Request{Ref: s.ref("k"), Mode: driver.Permit, Limit: 3}, driver.Gone)
	s.release(other, s.ref("k"), driver.Gone) // an unknown permit frees none
	s.renew(other, p[3], driver.Queued)
	s.release(other, p[1], driver.Held)
	s.release(other, p[1], driver.Gone)
	s.granted(other, p[3], s.patience())
	s.submit(d, driver.Request{Ref: s.ref("k"), Mode: driver.Permit, Limit: 3}, driver.Gone)
}

func permitsOfAnotherLimit(s *suite) {
	if !s.Caps.Supports(driver.Permit) {
		return
	}
	d := s.open()
	one, other, writer := s.ref("k"), s.ref("k"), s.ref("k")
	s.submit(d, permit(one, 2), driver.Held)
	s.submit(d, permit(other, 5), driver.Queued)
	s.submit(d, waiting(writer), driver.Queued)
	s.release(d, one, driver.Held)
	s.granted(d, other, s.patience())
	s.renew(d, writer, driver.Queued)
	s.release(d, other, driver.Held)
	s.granted(d, writer, s.patience())
}
