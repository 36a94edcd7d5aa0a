package unanswered_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/internal/unanswered"
	"github.com/ceyewan/genesis/pkg/xerrors"
)

func TestCause(t *testing.T) {
	a, b, other := errors.New("a"), driver.Classify(errors.New("b"), driver.Fatal), errors.New("other")
	held, unknown := driver.State{Phase: driver.Held}, driver.State{}
	for _, tc := range []struct {
		states []driver.State
		errs   []error
		want   string
		wraps  error
	}{
		{nil, nil, "<nil>", nil},
		{[]driver.State{held}, []error{a}, "<nil>", nil}, // it was answered after all
		{[]driver.State{unknown}, []error{nil}, "other", other},
		{[]driver.State{held, unknown}, []error{a, b}, "b", b},
		{[]driver.State{unknown, unknown}, []error{b, b}, "b", b},
		{[]driver.State{unknown, held, unknown}, []error{a, nil, b}, "several causes: a; b", nil},
		{[]driver.State{unknown, unknown}, []error{b, nil}, "several causes: b; other", nil},
	} {
		err := unanswered.Cause(tc.states, tc.errs, other)
		if fmt.Sprint(err) != tc.want || (tc.wraps != nil && !errors.Is(err, tc.wraps)) {
			t.Errorf("%v, %v: %v, want %s", tc.states, tc.errs, err, tc.want)
		}
		if tc.wraps == nil && (errors.Is(err, a) || errors.Is(err, b) || driver.ClassOf(err) != driver.Ambiguous) {
			t.Errorf("%v wraps the cause of one claim", err)
		}
	}
	if err := unanswered.Cause([]driver.State{unknown}, []error{nil}, nil); err == nil {
		t.Error("a claim was not answered, and there is no error")
	}
	if unanswered.HasSeveral(a) || unanswered.HasSeveral(nil) || !unanswered.HasSeveral(unanswered.Cause(make([]driver.State, 2), []error{a, b}, nil)) {
		t.Error("HasSeveral is wrong")
	}
	states, errs := make([]driver.State, 9), make([]error, 9)
	for i := range errs {
		errs[i] = fmt.Errorf("e%d", i)
	}
	if err := unanswered.Cause(states, errs, other); err == nil || err.Error() != "several causes: e0; e1; e2; e3; and 5 more" {
		t.Errorf("%v", err)
	}
}

// Two servers that cannot be reached are one outage: the error is what both causes are, and no more.
func TestCausesOfOneKind(t *testing.T) {
	quorum := errors.New("no quorum")
	down := func(addr string) error {
		return driver.Classify(fmt.Errorf("%w: %s", driver.ErrUnavailable, addr), driver.Transient)
	}
	lacking := func(addr string) error {
		return driver.Classify(fmt.Errorf("%w: %w: %s", quorum, driver.ErrUnavailable, addr), driver.Transient)
	}
	states := make([]driver.State, 2)
	err := unanswered.Cause(states, []error{lacking("one"), lacking("two")}, nil)
	if !errors.Is(err, quorum) || !errors.Is(err, driver.ErrUnavailable) || driver.ClassOf(err) != driver.Transient || errors.Is(err, driver.ErrDenied) {
		t.Errorf("%v lost its kind", err)
	}
	err = unanswered.Cause(states, []error{lacking("one"), down("two")}, nil)
	if errors.Is(err, quorum) || !errors.Is(err, driver.ErrUnavailable) || driver.ClassOf(err) != driver.Transient {
		t.Errorf("%v: of a kind that only one cause has", err)
	}
	denied := driver.Classify(fmt.Errorf("%w: one", driver.ErrDenied), driver.Fatal)
	err = unanswered.Cause(states, []error{denied, lacking("two")}, nil)
	if errors.Is(err, driver.ErrDenied) || errors.Is(err, driver.ErrUnavailable) || driver.ClassOf(err) != driver.Ambiguous {
		t.Errorf("%v: of the kind of one cause", err)
	}
}

// The code of one cause is not that of the others, and our own timeout is not that of the caller's context.
func TestCausesWithCodes(t *testing.T) {
	cause := func(causes ...error) error { return unanswered.Cause(make([]driver.State, len(causes)), causes, nil) }
	coded := func(code, text string) error {
		return driver.Classify(fmt.Errorf("%w: %s", xerrors.NewOf(driver.ErrNotReady, code, code), text), driver.Transient)
	}
	differ, same := cause(coded("a", "1"), coded("b", "2")), cause(coded("a", "1"), coded("a", "2"))
	if code := xerrors.CodeOf(differ); code != "" || !errors.Is(differ, driver.ErrNotReady) || driver.ClassOf(differ) != driver.Transient {
		t.Errorf("%v has the code %q and is %v", differ, code, driver.ClassOf(differ))
	}
	if code := xerrors.CodeOf(same); code != "a" || driver.ClassOf(same) != driver.Transient {
		t.Errorf("%v has the code %q and is %v", same, code, driver.ClassOf(same))
	}
	if !unanswered.HasSeveral(same) || !unanswered.HasSeveral(differ) {
		t.Error("HasSeveral is wrong")
	}
	timeout := cause(errors.New("refused"), fmt.Errorf("dial: %w", context.DeadlineExceeded), context.DeadlineExceeded, context.DeadlineExceeded)
	if text := fmt.Sprint(timeout); text != "several causes: refused; dial: context deadline exceeded; no answer in time" {
		t.Error(text)
	}
	unsent := driver.Classify(fmt.Errorf("%w: timeout", driver.ErrUnavailable), driver.Transient)
	unknown := errors.New(unsent.Error())
	if err := cause(unsent, unknown); driver.ClassOf(err) != driver.Ambiguous || errors.Is(err, driver.ErrUnavailable) {
		t.Errorf("%v: the second may have been executed", err)
	}
}
