package driver_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

type valueKey struct{}

func joined(t *testing.T) (j *driver.Joined, cancelCaller, cancelBound func()) {
	t.Helper()
	caller, cancelCaller := context.WithCancel(context.WithValue(t.Context(), valueKey{}, "theirs"))
	bound, cancelBound := context.WithDeadline(context.Background(), time.Now().Add(time.Hour))
	t.Cleanup(cancelCaller)
	t.Cleanup(cancelBound)
	j = driver.Join(caller, bound)
	t.Cleanup(j.Part)
	return j, cancelCaller, cancelBound
}

func over(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func TestJoinedEndsWithEither(t *testing.T) {
	for name, pick := range map[string]int{"caller": 0, "bound": 1} {
		j, caller, bound := joined(t)
		child, cancel := context.WithCancel(j)
		defer cancel()
		if j.Err() != nil || over(j.Done()) || over(child.Done()) {
			t.Fatalf("%s: over at once: %v", name, j.Err())
		}
		[]func(){caller, bound}[pick]()
		if !errors.Is(j.Err(), context.Canceled) {
			t.Errorf("%s: %v", name, j.Err())
		}
		one, other := j.Ends()
		if over(one) != (pick == 0) || over(other) != (pick == 1) {
			t.Errorf("%s: the wrong end", name)
		}
		<-j.Done()
		<-child.Done()
	}
}

func TestJoinedKnowsTheEarlierDeadline(t *testing.T) {
	at := time.Now().Add(time.Hour)
	early, cancel := context.WithDeadline(t.Context(), at)
	defer cancel()
	late, cancelLate := context.WithDeadline(t.Context(), at.Add(time.Hour))
	defer cancelLate()
	for _, j := range []*driver.Joined{driver.Join(early, late), driver.Join(late, early), driver.Join(early, t.Context()), driver.Join(t.Context(), early)} {
		if got, ok := j.Deadline(); !ok || !got.Equal(at) {
			t.Errorf("%v, %v", got, ok)
		}
	}
	if _, ok := driver.Join(t.Context(), t.Context()).Deadline(); ok {
		t.Error("a deadline out of nothing")
	}
}

func TestJoinedHasTheValuesOfTheCaller(t *testing.T) {
	j, _, _ := joined(t)
	for range 2 { // before and after it is linked
		if v := j.Value(valueKey{}); v != "theirs" {
			t.Errorf("%v", v)
		}
		_ = j.Done()
	}
}

// After Part nothing of the link is left with either context.
func TestJoinedParts(t *testing.T) {
	j, _, _ := joined(t)
	done := j.Done()
	j.Part()
	<-done
	j.Part()
	unasked, _, _ := joined(t)
	unasked.Part()
	if unasked.Err() != nil {
		t.Error(unasked.Err())
	}
}
