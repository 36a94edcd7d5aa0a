package drivertest

import (
	"context"
	"errors"
	"log/slog"
	"reflect"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

var discard = slog.New(slog.DiscardHandler)

func caps(s *suite) {
	got := s.open().Caps()
	if !reflect.DeepEqual(got, s.Caps) {
		s.Errorf("the driver says %+v, the harness %+v", got, s.Caps)
	}
	if got.Name == "" || !got.Supports(driver.Exclusive) {
		s.Errorf("%+v has no name or no exclusive mode", got)
	}
}

func submit(s *suite) {
	d, other := s.open(), s.open()
	first, second, third := s.ref("k"), s.ref("k"), s.ref("k")
	third.QueueTTL = 0

	before := time.Now()
	st := s.submit(d, request(first), driver.Held)
	if (st.Token > 0) != s.Caps.Fencing {
		s.Errorf("token %d, though Fencing is %v", st.Token, s.Caps.Fencing)
	}
	s.checkUntil(st, before, first.TTL)

	s.submit(other, request(second), driver.Gone)
	s.renew(other, second, driver.Gone) // nothing was stored

	before = time.Now()
	st = s.submit(other, waiting(third), driver.Queued)
	s.checkUntil(st, before, driver.Heartbeat(third.TTL))
	if s.Caps.FIFO && st.Ahead != 1 {
		s.Errorf("Ahead is %d behind one holder", st.Ahead)
	}
	if st.Token != 0 {
		s.Errorf("a queued claim has the token %d", st.Token)
	}
	s.submit(d, request(s.ref("another key")), driver.Held)
}

// checkUntil asserts that a lease counts from before the call, not from its answer.
func (s *suite) checkUntil(st driver.State, before time.Time, lease time.Duration) {
	s.Helper()
	if !s.Caps.Lease {
		if !st.Until.IsZero() {
			s.Errorf("Until is set, though there is no lease")
		}
		return
	}
	if st.Until.Before(before) || st.Until.After(time.Now().Add(lease)) {
		s.Errorf("Until is %v after the call was begun, for a lease of %v", st.Until.Sub(before), lease)
	}
}

func repeatSubmit(s *suite) {
	d, other := s.open(), s.open()
	holder, waiter := s.ref("k"), s.ref("k")
	st := s.submit(d, request(holder), driver.Held)
	again := s.submit(d, request(holder), driver.Held)
	if again.Token != st.Token {
		s.Errorf("token %d became %d by submitting again", st.Token, again.Token)
	}
	if s.Caps.Lease && again.Until.Before(st.Until) {
		s.Errorf("submitting again did not restart the deadline")
	}
	s.submit(other, waiting(waiter), driver.Queued)
	s.submit(other, waiting(s.ref("k")), driver.Queued)
	if st := s.submit(other, waiting(waiter), driver.Queued); s.Caps.FIFO && st.Ahead != 1 {
		s.Errorf("submitting again moved the first waiter behind %d", st.Ahead)
	}
	s.release(d, holder, driver.Held)
	s.granted(other, waiter, s.patience())
	s.submit(other, waiting(waiter), driver.Held)
}

// patience returns how long a waiter may need to find that it has the key.
func (s *suite) patience() time.Duration {
	return driver.Heartbeat(s.TTL) + s.Slack
}

func tombstonedID(s *suite) {
	d := s.open()
	late := s.ref("k")
	late.Unanswered = true
	s.release(d, late, driver.Gone)
	late.Unanswered = false
	s.submit(d, request(late), driver.Gone)
	s.submit(d, waiting(late), driver.Gone)
	s.renew(d, late, driver.Gone)

	next := s.ref("k")
	s.submit(d, request(next), driver.Held)
	next.Unanswered = true
	s.release(d, next, driver.Held)
	s.submit(s.open(), request(next), driver.Gone)

	holder, waiter := s.ref("k"), s.ref("k")
	s.submit(d, request(holder), driver.Held)
	s.submit(d, waiting(waiter), driver.Queued)
	waiter.Unanswered = true
	s.release(d, waiter, driver.Queued)
	waiter.Unanswered = false
	s.submit(d, waiting(waiter), driver.Gone)
	behind := s.ref("k")
	s.submit(d, waiting(behind), driver.Queued)
	s.submit(d, waiting(waiter), driver.Gone) // also where it would stand behind another
	s.submit(s.open(), waiting(late), driver.Gone)
	s.release(d, behind, driver.Queued)
	s.release(d, holder, driver.Held)
	s.submit(d, request(s.ref("k")), driver.Held)
}

func releaseInAnyPhase(s *suite) {
	d := s.open()
	holder, waiter := s.ref("k"), s.ref("k")
	s.release(d, s.ref("never submitted"), driver.Gone)
	s.submit(d, request(holder), driver.Held)
	s.submit(d, waiting(waiter), driver.Queued)
	s.release(d, waiter, driver.Queued)
	s.release(d, waiter, driver.Gone)
	s.release(d, holder, driver.Held)
	s.release(d, holder, driver.Gone)
	s.submit(d, request(s.ref("k")), driver.Held)
}

func onlyTheHolderReleases(s *suite) {
	d, other := s.open(), s.open()
	holder, thief := s.ref("k"), s.ref("k")
	st := s.submit(d, request(holder), driver.Held)
	s.release(other, thief, driver.Gone)
	thief.Unanswered = true
	s.release(other, thief, driver.Gone)
	if now := s.renew(d, holder, driver.Held); now.Token != st.Token {
		s.Errorf("the token changed from %d to %d", st.Token, now.Token)
	}
	s.submit(other, request(s.ref("k")), driver.Gone)
}

// deadContext: a call whose context has ended returns its error at once, and Release removes
// whatever it stored.
func deadContext(s *suite) {
	d := s.open()
	ctx, cancel := context.WithCancel(s.ctx)
	cancel()
	r := s.ref("k")
	_, err := d.Acquire(ctx, waiting(r))
	if !errors.Is(err, context.Canceled) {
		s.Errorf("Acquire: %v", err)
	}
	if driver.ClassOf(err) == driver.Ambiguous {
		s.Errorf("Acquire, which has sent nothing, leaves open whether it has: %v", err)
	}
	if _, err := d.Renew(ctx, []driver.Ref{r}); !errors.Is(err, context.Canceled) {
		s.Errorf("Renew: %v", err)
	}
	if _, err := d.Release(ctx, r); !errors.Is(err, context.Canceled) {
		s.Errorf("Release: %v", err)
	}
	r.Unanswered = true
	_, err = s.ask(func() error { _, err := d.Release(s.ctx, r); return err })
	if err != nil {
		s.Errorf("Release: %v", err)
	}
	s.submit(d, request(s.ref("k")), driver.Held)
}

func closing(s *suite) {
	d, other := s.open(), s.open()
	r := s.ref("k")
	s.submit(d, request(r), driver.Held)
	if err := d.Close(); err != nil {
		s.Fatalf("Close: %v", err)
	}
	for range d.Events() { // ends only if Close closed it
	}
	if err := d.Close(); err != nil {
		s.Errorf("second Close: %v", err)
	}
	if s.Caps.Lease {
		s.submit(other, request(s.ref("k")), driver.Gone)
		s.release(other, r, driver.Held)
	}
	s.submit(other, request(s.ref("k")), driver.Held)
}
