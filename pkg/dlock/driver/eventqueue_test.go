package driver_test

import (
	"errors"
	"slices"
	"strconv"
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

// A full EventQueue does not block its sender: one event without an ID tells the receiver that it missed some, and is before all that
// are newer.
func TestFullEventQueueReportsTheLoss(t *testing.T) {
	for size, want := range map[int][]string{0: {""}, 1: {""}, 4: {"", "10"}, 7: {"", "9", "10"}, 10: {"1", "2", "3", "4", "5", "6", "7", "8", "9", "10"}} {
		o := driver.NewEventQueue(size)
		for i := range 10 {
			o.Send(driver.Event{ID: strconv.Itoa(i + 1)})
		}
		o.Close()
		var got []string
		for ev := range o.Events() {
			got = append(got, ev.ID)
		}
		if !slices.Equal(got, want) {
			t.Errorf("size %d: events %q, want %q", size, got, want)
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
