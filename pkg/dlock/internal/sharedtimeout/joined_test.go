package sharedtimeout_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock/internal/sharedtimeout"
)

type valueKey struct{}

func joined(t *testing.T) (j *sharedtimeout.Joined, cancelCaller, cancelLimit func()) {
	t.Helper()
	caller, cancelCaller := context.WithCancel(context.WithValue(t.Context(), valueKey{}, "theirs"))
	limit, cancelLimit := context.WithDeadline(context.Background(), time.Now().Add(time.Hour))
	t.Cleanup(cancelCaller)
	t.Cleanup(cancelLimit)
	j = sharedtimeout.Join(caller, limit)
	t.Cleanup(j.Unlink)
	return j, cancelCaller, cancelLimit
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
	for name, pick := range map[string]int{"caller": 0, "limit": 1} {
		j, caller, limit := joined(t)
		child, cancel := context.WithCancel(j)
		defer cancel()
		if j.Err() != nil || over(j.Done()) || over(child.Done()) {
			t.Fatalf("%s: over at once: %v", name, j.Err())
		}
		[]func(){caller, limit}[pick]()
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
	for _, j := range []*sharedtimeout.Joined{sharedtimeout.Join(early, late), sharedtimeout.Join(late, early), sharedtimeout.Join(early, t.Context()), sharedtimeout.Join(t.Context(), early)} {
		if got, ok := j.Deadline(); !ok || !got.Equal(at) {
			t.Errorf("%v, %v", got, ok)
		}
	}
	if _, ok := sharedtimeout.Join(t.Context(), t.Context()).Deadline(); ok {
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

// After Unlink, neither context keeps anything of the link.
func TestJoinedParts(t *testing.T) {
	j, _, _ := joined(t)
	done := j.Done()
	j.Unlink()
	<-done
	j.Unlink()
	unasked, _, _ := joined(t)
	unasked.Unlink()
	if unasked.Err() != nil {
		t.Error(unasked.Err())
	}
}
