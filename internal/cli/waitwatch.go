package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock"
)

// A waitWatch watches a wait for a lock: for signals, and for a backend that fails.
type waitWatch struct {
	*run
	since  time.Time // when the backend began to fail; zero: it does not
	last   error     // why the last call failed
	probes chan bool // what isStored has returned

	watching sync.WaitGroup
}

// probePause is how often a backend that fails is asked whether it answers again.
const probePause = time.Second

// unanswered is why a wait was given up: the backend has failed for too long.
type unanswered struct {
	since time.Duration
	err   error
}

func (u unanswered) Error() string {
	return fmt.Sprintf("the backend has failed for %v: %v", u.since.Round(time.Second), u.err)
}

func (u unanswered) Unwrap() error { return u.err }

// watchWait ends the wait at a signal, and when the backend has failed for one TTL; --try and --wait have their own limit. It
// reports the first call that fails. Signals that come after stop has returned are left to the command.
func (r *run) watchWait(signals <-chan os.Signal, cancel context.CancelCauseFunc) (stop func()) {
	ctx, end := context.WithCancel(r.cmd.Context())
	w := &waitWatch{run: r, probes: make(chan bool, 1)}
	w.watching.Go(func() { w.watch(ctx, signals, cancel) })
	return func() {
		end()
		w.watching.Wait()
		select {
		case <-r.unrenewed: // of the wait, not of the lock
		default:
		}
	}
}

func (w *waitWatch) watch(ctx context.Context, signals <-chan os.Signal, cancel context.CancelCauseFunc) {
	due := time.NewTimer(probePause)
	due.Stop()
	for {
		select {
		case s := <-signals:
			if w.heeds(s) {
				cancel(signalled{s})
				return
			}
		case err := <-w.failing:
			w.failed(err, due)
		case err := <-w.unrenewed:
			w.failed(err, due)
		case <-due.C:
			w.watching.Go(func() { w.probes <- w.isStored(ctx) })
		case stored := <-w.probes:
			long := time.Since(w.since)
			switch {
			case stored:
				w.since = time.Time{}
			case long >= w.ttl && !w.limited():
				cancel(unanswered{long, w.last})
				return
			default:
				due.Reset(probePause)
			}
		case <-ctx.Done():
			return
		}
	}
}

// failed records a failure, and reports the first of several in a row.
func (w *waitWatch) failed(err error, probe *time.Timer) {
	w.last = err
	if w.since.IsZero() {
		w.since = time.Now()
		w.reporter.event(event{What: "retrying", Error: err.Error()})
		probe.Reset(probePause)
	}
}

// isStored reports whether the backend answers and knows that we wait, if it knows its waiters.
func (w *waitWatch) isStored(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, 2*probePause)
	defer cancel()
	a, err := w.client.Admin()
	if err != nil {
		return false
	}
	claims, err := a.Inspect(ctx, w.key)
	unknown := !w.knowsWaiters() || w.Name == string(dlock.BackendRedlock)
	return err == nil && (unknown || slices.ContainsFunc(claims, func(c dlock.Claim) bool { return isOwn(&c) }))
}

// waitError is the error of a wait: why it was given up, if we have done that.
func waitError(asked context.Context, err error) error {
	var u unanswered
	if errors.Is(err, context.Canceled) && errors.As(context.Cause(asked), &u) {
		return &exit{ExitBackend, u}
	}
	return backendError(err)
}
