package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"
)

// acquire waits for the lock. A signal ends the wait.
func (r *run) acquire(signals <-chan os.Signal) error {
	asked, cancel := context.WithCancelCause(r.cmd.Context())
	defer cancel(nil)
	ctx := asked
	if r.limited() { // a server that hangs does not extend it by much
		var stop context.CancelFunc
		ctx, stop = context.WithDeadline(ctx, r.giveUp.Add(leastPatience/2))
		defer stop()
	}
	unwatch := r.watchWait(signals, cancel)
	stop := func() {}
	if !r.try {
		stop = r.reporter.waits(r.session, r.key)
	}
	g, err := r.client.Acquire(ctx, r.key, r.options()...)
	stop()
	if err == nil {
		r.guard, r.taken = g, time.Now()
		err = r.lengthen(ctx)
	}
	unwatch()
	var s signalled
	switch {
	case err != nil:
		r.nameHolder(err)
		return waitError(asked, err)
	case errors.As(context.Cause(asked), &s): // it came with the lock
		return backendError(fmt.Errorf("%w: %w", context.Canceled, s))
	}
	r.reporter.event(event{What: "acquired", Token: r.guard.Token()})
	return nil
}

// lengthen waits for the whole lease. A caller that has waited for a lock gets it for what is
// left of a heartbeat, which may be less than the command would need to end.
func (r *run) lengthen(ctx context.Context) error {
	if r.guard.Remaining() > r.ttl*2/3 {
		return nil
	}
	return r.guard.Extend(ctx, r.ttl)
}
