package dlock

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/internal/sharedtimeout"
)

// maxRetrying is how many calls ask again at a time after the backend had no room for their claims. The others wait until
// one of these has an answer: thousands of calls that ask again and again would take the processors from those that proceed.
const maxRetrying = 256

// hadNoRoom reports whether an attempt ended because too many others were under way: nothing was sent, and nothing failed.
func hadNoRoom(err error) bool {
	return errors.Is(err, sharedtimeout.ErrAttemptTimeout) && driver.ClassOf(err) == driver.Transient
}

// awaitTurn waits until the call may ask again. It returns an error if there is no next attempt.
func (a *acquisition) awaitTurn(ctx context.Context, cause error) error {
	c := a.client
	switch {
	case c.closing.Err() != nil:
		return ErrClosed
	case ctx.Err() != nil:
		return fmt.Errorf("%w (last error: %w)", ctxError(ctx), cause)
	case c.now() >= a.deadline:
		return cause
	case a.hasTurn:
		return nil
	}
	var timeUp <-chan time.Time
	if a.deadline != never {
		t := time.NewTimer(time.Duration(a.deadline - c.now()))
		defer t.Stop()
		timeUp = t.C
	}
	select {
	case c.turns <- struct{}{}:
		a.hasTurn = true
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%w (last error: %w)", ctxError(ctx), cause)
	case <-c.closing.Done():
		return ErrClosed
	case <-timeUp:
		return cause
	}
}

// endTurn lets another call ask again.
func (a *acquisition) endTurn() {
	if a.hasTurn {
		a.hasTurn = false
		<-a.client.turns
	}
}
