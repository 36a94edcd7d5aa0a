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

func filing(s *suite) {
	d, other := s.open(), s.open()
	first, second, third := s.ref("k"), s.ref("k"), s.ref("k")

	before := time.Now()
	st := s.file(d, request(first), driver.Held)
	if (st.Token > 0) != s.Caps.Fencing {
		s.Errorf("token %d, though Fencing is %v", st.Token, s.Caps.Fencing)
	}
	s.checkUntil(st, before, first.TTL)

	s.file(other, request(second), driver.Gone)
	s.renew(other, second, driver.Gone) // nothing was stored

	before = time.Now()
	st = s.file(other, waiting(third), driver.Queued)
	s.checkUntil(st, before, driver.Heartbeat(third.TTL))
	if s.Caps.FIFO && st.Ahead != 1 {
		s.Errorf("Ahead is %d behind one holder", st.Ahead)
	}
	if st.Token != 0 {
		s.Errorf("a queued claim has the token %d", st.Token)
	}
	s.file(d, request(s.ref("another key")), driver.Held)
}

// checkUntil asserts that a lease counts from before the call, not from its
// answer.
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

func repeatFiling(s *suite) {
	d, other := s.open(), s.open()
	holder, waiter := s.ref("k"), s.ref("k")
	st := s.file(d, request(holder), driver.Held)
	again := s.file(d, request(holder), driver.Held)
	if again.Token != st.Token {
		s.Errorf("token %d became %d by filing again", st.Token, again.Token)
	}
	if s.Caps.Lease && again.Until.Before(st.Until) {
		s.Errorf("filing again did not restart the deadline")
	}
	s.file(other, waiting(waiter), driver.Queued)
	s.file(other, waiting(s.ref("k")), driver.Queued)
	if st := s.file(other, waiting(waiter), driver.Queued); s.Caps.FIFO && st.Ahead != 1 {
		s.Errorf("filing again moved the first waiter behind %d", st.Ahead)
	}
	s.release(d, holder, driver.Held)
	s.granted(other, waiter, s.patience())
	s.file(other, waiting(waiter), driver.Held)
}

// patience is how long a waiter may need to find that the key is its own.
func (s *suite) patience() time.Duration {
	return driver.Heartbeat(s.TTL) + s.Slack
}

func barredID(s *suite) {
	d := s.open()
	late := s.ref("k")
	late.Unsettled = true
	s.release(d, late, driver.Gone)
	late.Unsettled = false
	s.file(d, request(late), driver.Gone)
	s.file(d, waiting(late), driver.Gone)
	s.renew(d, late, driver.Gone)

	next := s.ref("k")
	s.file(d, request(next), driver.Held)
	next.Unsettled = true
	s.release(d, next, driver.Held)
	s.file(s.open(), request(next), driver.Gone)

	holder, waiter := s.ref("k"), s.ref("k")
	s.file(d, request(holder), driver.Held)
	s.file(d, waiting(waiter), driver.Queued)
	waiter.Unsettled = true
	s.release(d, waiter, driver.Queued)
	waiter.Unsettled = false
	s.file(d, waiting(waiter), driver.Gone)
	behind := s.ref("k")
	s.file(d, waiting(behind), driver.Queued)
	s.file(d, waiting(waiter), driver.Gone) // also where it would stand behind another
	s.file(s.open(), waiting(late), driver.Gone)
	s.release(d, behind, driver.Queued)
	s.release(d, holder, driver.Held)
	s.file(d, request(s.ref("k")), driver.Held)
}

func releaseInAnyPhase(s *suite) {
	d := s.open()
	holder, waiter := s.ref("k"), s.ref("k")
	s.release(d, s.ref("never filed"), driver.Gone)
	s.file(d, request(holder), driver.Held)
	s.file(d, waiting(waiter), driver.Queued)
	s.release(d, waiter, driver.Queued)
	s.release(d, waiter, driver.Gone)
	s.release(d, holder, driver.Held)
	s.release(d, holder, driver.Gone)
	s.file(d, request(s.ref("k")), driver.Held)
}

func onlyTheHolderReleases(s *suite) {
	d, other := s.open(), s.open()
	holder, thief := s.ref("k"), s.ref("k")
	st := s.file(d, request(holder), driver.Held)
	s.release(other, thief, driver.Gone)
	thief.Unsettled = true
	s.release(other, thief, driver.Gone)
	if now := s.renew(d, holder, driver.Held); now.Token != st.Token {
		s.Errorf("the token changed from %d to %d", st.Token, now.Token)
	}
	s.file(other, request(s.ref("k")), driver.Gone)
}

// deadContext: a call whose context has ended answers at once with its error,
// and whatever it did is settled by Release.
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
	r.Unsettled = true
	if _, err := d.Release(s.ctx, r); err != nil {
		s.Errorf("Release: %v", err)
	}
	s.file(d, request(s.ref("k")), driver.Held)
}

func closing(s *suite) {
	d, other := s.open(), s.open()
	r := s.ref("k")
	s.file(d, request(r), driver.Held)
	if err := d.Close(); err != nil {
		s.Fatalf("Close: %v", err)
	}
	for range d.Events() { // ends only if Close closed it
	}
	if err := d.Close(); err != nil {
		s.Errorf("second Close: %v", err)
	}
	if s.Caps.Lease {
		s.file(other, request(s.ref("k")), driver.Gone)
		s.release(other, r, driver.Held)
	}
	s.file(other, request(s.ref("k")), driver.Held)
}
