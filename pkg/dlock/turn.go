package dlock

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock/internal/sharedtimeout"
)

// maxRetrying is how many calls ask again at a time after the backend had no room for their claims. The others wait until
// one of these has an answer: thousands of calls that ask again and again would take the processors from those that proceed.
const maxRetrying = 256

// hadNoRoom reports whether an attempt ended because too many others were under way: nothing was sent, and nothing failed.
func hadNoRoom(err error) bool { return errors.Is(err, sharedtimeout.ErrNoRoom) }

// awaitTurn waits until the call may ask again. If the backend has answered no call of the Client meanwhile, it does not merely lack
// room: the attempt counts as a failure. It returns an error if there is no next attempt.
func (a *acquisition) awaitTurn(ctx context.Context, key string, cause error) error {
	for {
		if !a.othersProceed() {
			a.endTurn()
			if ctx.Err() == nil {
				a.client.logRetry(key, a.failures+1, cause)
			}
			return a.backOff(ctx, cause)
		}
		err := a.takeTurn(ctx, cause)
		if !errors.Is(err, errNoTurn) {
			return err
		}
	}
}

// othersProceed reports whether a call of the Client was answered since it was last asked, or since the attempt began.
func (a *acquisition) othersProceed() bool {
	before := a.answers
	a.answers = a.client.answers.Load()
	return a.answers != before
}

// turnPatience is how long a call waits for its turn before it looks whether others proceed.
const turnPatience = 2 * time.Second

var errNoTurn = errors.New("no turn yet")

func (a *acquisition) takeTurn(ctx context.Context, cause error) error {
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
	t := time.NewTimer(min(turnPatience, time.Duration(a.deadline-c.now())))
	defer t.Stop()
	select {
	case c.turns <- struct{}{}:
		a.hasTurn = true
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%w (last error: %w)", ctxError(ctx), cause)
	case <-c.closing.Done():
		return ErrClosed
	case <-t.C:
		if c.now() >= a.deadline {
			return cause
		}
		return errNoTurn
	}
}

// endTurn lets another call ask again.
func (a *acquisition) endTurn() {
	if a.hasTurn {
		a.hasTurn = false
		<-a.client.turns
	}
}
