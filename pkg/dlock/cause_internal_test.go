package dlock

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"
)

// The time-out of a connection that has the deadline of a context is the end of that context, also if the context has
// not noticed it yet. Another error stays what it is.
func TestConnectionTimesOutWithItsContext(t *testing.T) {
	c := &Client{}
	c.closing = t.Context()
	over, cancel := context.WithDeadline(t.Context(), time.Now().Add(-time.Hour))
	defer cancel()
	canceled, stop := context.WithCancel(t.Context())
	stop()
	other := errors.New("other")
	for name, tt := range map[string]struct {
		ctx  context.Context
		err  error
		want error
		also error
	}{
		"its deadline":      {over, os.ErrDeadlineExceeded, context.DeadlineExceeded, os.ErrDeadlineExceeded},
		"unnoticed":         {unnoticed{over}, os.ErrDeadlineExceeded, context.DeadlineExceeded, os.ErrDeadlineExceeded},
		"canceled":          {canceled, os.ErrDeadlineExceeded, context.Canceled, os.ErrDeadlineExceeded},
		"another error":     {over, other, other, other},
		"no error":          {over, nil, nil, nil},
		"another time-out":  {t.Context(), os.ErrDeadlineExceeded, os.ErrDeadlineExceeded, os.ErrDeadlineExceeded},
		"the context's own": {over, context.DeadlineExceeded, context.DeadlineExceeded, context.DeadlineExceeded},
	} {
		err := c.callError(tt.ctx, tt.err)
		if !errors.Is(err, tt.want) || !errors.Is(err, tt.also) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := c.callError(t.Context(), os.ErrDeadlineExceeded); isContextError(err) {
		t.Errorf("another time-out is %v", err)
	}
}

// unnoticed is a context whose deadline has passed and whose timer has not run.
type unnoticed struct{ context.Context }

func (unnoticed) Err() error { return nil }
