package driver_test

import (
	"errors"
	"testing"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/xerrors"
)

// Events come in the order in which they were sent.
func TestEventQueueKeepsTheOrder(t *testing.T) {
	o := driver.NewEventQueue(3)
	for _, id := range []string{"a", "b", "c"} {
		o.Send(driver.Event{ID: id})
	}
	for _, want := range []string{"a", "b", "c"} {
		if ev := <-o.Events(); ev.ID != want {
			t.Errorf("received %q, want %q", ev.ID, want)
		}
	}
}

// A full EventQueue does not block its sender: an event without an ID, after the events that were
// kept, tells the receiver that it missed some.
func TestFullEventQueueReportsTheLoss(t *testing.T) {
	for _, size := range []int{0, 1, 4} {
		o := driver.NewEventQueue(size)
		for range 10 {
			o.Send(driver.Event{ID: "a"})
		}
		o.Close()
		var last driver.Event
		n := 0
		for last = range o.Events() {
			n++
		}
		if n != max(size, 1) || last.ID != "" {
			t.Errorf("size %d: %d events, the last with ID %q", size, n, last.ID)
		}
	}
}

func TestClosedEventQueueTakesNothing(t *testing.T) {
	o := driver.NewEventQueue(1)
	o.Close()
	o.Close()
	o.Send(driver.Event{ID: "a"})
	if ev, open := <-o.Events(); open {
		t.Errorf("received %+v after Close", ev)
	}
}

func TestSentinelsHaveCodes(t *testing.T) {
	for err, want := range map[error]string{driver.ErrUnavailable: "unavailable", driver.ErrInvalidTTL: "invalid_ttl"} {
		if code := xerrors.CodeOf(driver.Classify(errors.Join(err), driver.Transient)); code != want {
			t.Errorf("the code of %v is %q, want %q", err, code, want)
		}
	}
}
