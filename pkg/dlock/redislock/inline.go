package redislock

import (
	"context"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock/internal/sharedtimeout"
)

// An inlineCall is a call that is made in the goroutine of its caller.
type inlineCall struct {
	cmd           *command
	own           time.Time // the deadline of its context, if it is limited
	limited       bool
	uncancellable bool
	delayed       []*pendingCall // to be sent before it
}

// callInline makes a call in the caller's goroutine.
func (p *pipeliner) callInline(ctx context.Context, c inlineCall) error {
	started, answered := time.Now(), false
	defer func() { p.finish(started, answered) }() // also if a hook of the client panics
	client, call, end := p.driver.client, ctx, time.Time{}
	if !c.uncancellable {
		client = p.driver.shortTimeoutClient
		attempt := p.driver.attemptTimeouts.Within(p.driver.ctx, attemptTimeout)
		end, _ = attempt.Deadline()
		if c.limited && c.own.Before(end) {
			var cancel context.CancelFunc
			attempt, cancel = context.WithDeadline(p.driver.ctx, c.own)
			defer cancel()
			end = c.own
		}
		call = sharedtimeout.Uncancelled{Context: attempt, Values: ctx}
	}
	err := processWith(call, client, c.cmd, c.delayed)
	answered = isAnswer(err)
	if answered || c.uncancellable || time.Now().Before(end) {
		return err
	}
	return c.endedBy(ctx, end)
}

// endedBy returns why a call was ended: by its context, or only by its attempt timeout.
func (c *inlineCall) endedBy(ctx context.Context, end time.Time) error {
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case c.limited && !c.own.After(end): // the timer of ctx is about to fire
		return context.DeadlineExceeded
	}
	return sharedtimeout.ErrAttemptTimeout
}
