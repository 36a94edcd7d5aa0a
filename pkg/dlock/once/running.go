package once

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock"
)

// A running is one run of a Job.
type running struct {
	*Job
	guard    *dlock.Guard
	begun    time.Time // the hold counts from then, or later
	extended bool      // the lease may last longer than the hold
}

// errPanicked is what the record says of a run that panicked: the text of a panic is not for others.
var errPanicked = errors.New("it panicked")

// run calls fn and keeps the key locked.
func (r *running) run(ctx context.Context, fn func(context.Context) error) (err error) {
	owned, cancel := r.guard.WithContext(ctx)
	defer cancel()
	stopKeeping := r.keep(ctx)
	started, returned := time.Now(), false
	defer func() { // also if fn panics
		took := time.Since(started)
		failed := err
		if !returned {
			failed = errPanicked
		}
		defer func() { // also if the error or a hook of the backend's client panics
			stopKeeping()
			err = errors.Join(err, r.finish(ctx, failed))
		}()
		err = errors.Join(err, r.record(ctx, took, failed))
	}()
	err = fn(owned)
	returned = true
	return err
}

// left returns how much of the hold is left.
func (r *running) left() time.Duration { return r.hold - time.Since(r.begun) }

// keep extends the lease of a run that may take longer than the hold, until stop is called.
func (r *running) keep(ctx context.Context) (stop func()) {
	ctx, cancel := r.guard.WithContext(context.WithoutCancel(ctx))
	var keeping sync.WaitGroup
	keeping.Go(func() {
		lease := r.lease
		for r.sleepUntilDue(ctx, min(lease*2/3, r.hold/2)) {
			r.extended = true
			err := r.guard.Extend(ctx, max(lease, r.left())) // never less than the hold
			switch {
			case errors.Is(err, dlock.ErrInvalidTTL) && lease < r.hold:
				lease = r.hold // the backend cannot keep a lease that short, but it has accepted the hold
			case err != nil:
				return // the lock is lost, or the run has ended: Extend retries everything else
			}
		}
	})
	return func() {
		cancel()
		keeping.Wait()
	}
}

// sleepUntilDue waits until only this much of the lease is left. It returns false if ctx ends first.
func (r *running) sleepUntilDue(ctx context.Context, left time.Duration) bool {
	due := time.NewTimer(r.guard.Remaining() - left)
	defer due.Stop()
	select {
	case <-due.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// endTimeout limits the calls after a run.
const endTimeout = 3 * time.Second

// finish leaves the key locked for the rest of the hold, or releases it.
func (r *running) finish(ctx context.Context, failed error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTimeout)
	defer cancel()
	left := r.left()
	if left <= 0 || (failed != nil && r.retries && r.guard.Err() == nil) {
		return r.guard.Unlock(ctx)
	}
	if r.extended { // the next run is due when the hold has passed, not when the longer lease has
		// Not less than twice the time for the answer: otherwise a late one would look like a loss.
		_ = r.guard.Extend(ctx, max(left, min(2*endTimeout, r.lease)))
	}
	if err := r.guard.Leave(); err != nil {
		return fmt.Errorf("once: while the job ran: %w", err)
	}
	return nil
}
