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
	guard *dlock.Guard
	begun time.Time // the hold counts from then, or later
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
		lost := r.confirm(ctx)
		defer func() { // also if the error or a hook of the backend's client panics
			stopKeeping()
			err = errors.Join(err, r.finish(ctx, failed, lost))
		}()
		err = errors.Join(err, r.record(ctx, took, failed, lost))
	}()
	err = fn(owned)
	returned = true
	return err
}

// left returns how much of the hold is left.
func (r *running) left() time.Duration { return r.hold - time.Since(r.begun) }

// keep extends the lease until stop is called. It does so long before the hold has passed: the answer says whether the lock was
// taken away.
func (r *running) keep(ctx context.Context) (stop func()) {
	ctx, cancel := r.guard.WithContext(context.WithoutCancel(ctx))
	var keeping sync.WaitGroup
	keeping.Go(func() {
		lease := r.lease
		for r.sleep(ctx, lease) {
			err := r.guard.Extend(ctx, max(lease, r.left())) // never less than the hold
			if errors.Is(err, dlock.ErrInvalidTTL) && lease < r.hold {
				lease = r.hold // the backend cannot keep a lease that short, but it has accepted the hold
				err = r.guard.Extend(ctx, lease)
			}
			if err != nil {
				return // the lock is lost, or the run has ended: Extend retries everything else
			}
		}
	})
	return func() {
		cancel()
		keeping.Wait()
	}
}

// minChecked is the shortest lease whose third is the time between two extensions before the hold has passed.
const minChecked = time.Second

// sleep waits until the lease is to be extended. It returns false if ctx ends first.
func (r *running) sleep(ctx context.Context, lease time.Duration) bool {
	lease = max(lease, min(r.left(), minChecked))
	due := time.NewTimer(min(lease, r.hold, dfltLease) / 3)
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

// confirm returns an error if the lock was lost before the run ended. If the backend does not answer, the lease counts.
func (r *running) confirm(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTimeout)
	defer cancel()
	_ = r.extend(ctx, max(r.lease, r.left()))
	return r.guard.Err()
}

// extend is Extend, with the shortest TTL that the backend can keep, or less than twice that, if ttl is shorter.
func (r *running) extend(ctx context.Context, ttl time.Duration) error {
	for {
		err := r.guard.Extend(ctx, ttl)
		if !errors.Is(err, dlock.ErrInvalidTTL) || ttl >= r.hold {
			return err
		}
		ttl = min(2*ttl, r.hold) // which the backend has accepted
	}
}

// finish leaves the key locked for the rest of the hold, or releases it.
func (r *running) finish(ctx context.Context, failed, lost error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTimeout)
	defer cancel()
	left := r.left()
	if left <= 0 || (failed != nil && r.retries && lost == nil) {
		return r.guard.Unlock(ctx)
	}
	if lost == nil && left < r.lease { // the next run is due when the hold has passed, not when the longer lease has
		_ = r.extend(ctx, left)
	}
	err := r.guard.Leave()
	if lost == nil && errors.Is(err, dlock.ErrOwnershipLost) {
		return nil // after the job: an answer came later than the short lease allows
	}
	if err != nil {
		return fmt.Errorf("once: while the job ran: %w", err)
	}
	return nil
}
