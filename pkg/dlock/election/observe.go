package election

import (
	"context"
	"errors"
	"iter"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/internal/recipes"
)

// Leader returns the process that leads. If there is none, the error is ErrNoLeader. If the backend cannot tell,
// it is dlock.ErrUnsupported.
func (e *Election) Leader(ctx context.Context) (Leader, error) {
	holder, held, err := e.locks.Holder(ctx, e.name)
	if err != nil {
		return Leader{}, err
	}
	if !held {
		return Leader{}, ErrNoLeader
	}
	leader := Leader{Term: holder.Token, Owner: holder.Info.Owner, Host: holder.Info.Host, PID: holder.Info.PID, For: holder.Age}
	shown, held, err := e.locks.Holder(ctx, e.valueKey())
	if err != nil {
		return Leader{}, err
	}
	if term, value, ok := recipes.ParseValue(shown.Info.Purpose); ok && held && term == leader.Term {
		leader.Value = value
	}
	return leader, nil
}

// Observe returns who leads, and then again each time that this has changed, until ctx ends. While there is
// no leader it returns the zero Leader. Without a context it returns nothing. It asks the backend once in a while, so it may miss a short term. Between
// two values there may be none for a moment. It skips times at which the backend does not answer, and ends if the
// Client is closed, or the backend refuses or cannot tell.
func (e *Election) Observe(ctx context.Context) iter.Seq[Leader] {
	return func(yield func(Leader) bool) {
		if ctx == nil {
			return
		}
		var last Leader
		seen := false
		for ctx.Err() == nil {
			leader, err := e.Leader(ctx)
			same := leader
			same.For = last.For
			if (err == nil || errors.Is(err, ErrNoLeader)) && (!seen || same != last) {
				if !yield(leader) {
					return
				}
				last, seen = leader, true
			}
			if isFinal(err) {
				return
			}
			if !sleep(ctx, e.poll) {
				return
			}
		}
	}
}

// isFinal reports whether asking again does not help.
func isFinal(err error) bool {
	return errors.Is(err, dlock.ErrClosed) || errors.Is(err, dlock.ErrDenied) || errors.Is(err, dlock.ErrUnsupported) ||
		errors.Is(err, dlock.ErrInvalidKey) || (err != nil && driver.ClassOf(err) == driver.Fatal)
}

// announce calls OnNewLeader when another term is seen.
func (e *Election) announce(ctx context.Context) {
	term := int64(-1)
	for leader := range e.Observe(ctx) {
		if leader.Owner == "" && leader.Term == 0 || leader.Term == term {
			continue
		}
		term = leader.Term
		e.calls.OnNewLeader(leader)
	}
}

func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
