package driver_test

import (
	"context"
	"errors"
	"testing"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/xerrors"
)

// Events come in the order in which they were sent.
func TestOutboxKeepsTheOrder(t *testing.T) {
	o := driver.NewOutbox(3)
	for _, id := range []string{"a", "b", "c"} {
		o.Send(driver.Event{ID: id})
	}
	for _, want := range []string{"a", "b", "c"} {
		if ev := <-o.Events(); ev.ID != want {
			t.Errorf("received %q, want %q", ev.ID, want)
		}
	}
}

// A full Outbox does not block its sender: the receiver is told that it missed something, by an
// event without an ID behind those that it did not miss.
func TestFullOutboxTellsOfTheLoss(t *testing.T) {
	for _, size := range []int{0, 1, 4} {
		o := driver.NewOutbox(size)
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

func TestClosedOutboxTakesNothing(t *testing.T) {
	o := driver.NewOutbox(1)
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

// An Uncancelled context has the values of the caller's, and then its own.
func TestUncancelledHasBothValues(t *testing.T) {
	type key string
	own := context.WithValue(context.WithValue(t.Context(), key("a"), "own"), key("b"), "own")
	u := driver.Uncancelled{Context: own, Values: context.WithValue(t.Context(), key("a"), "caller's")}
	if a, b, c := u.Value(key("a")), u.Value(key("b")), u.Value(key("c")); a != "caller's" || b != "own" || c != nil {
		t.Errorf("values are %v, %v and %v", a, b, c)
	}
}
