package dlock

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/internal/sharedtimeout"
)

// A cleanupQueue releases claims that have ended here but may still be stored at the
// backend: waiters that gave up, attempts that were never answered, releases that failed.
// It never uses a caller's context, and it does not give up before the lease has ended
// the claim. If the backend may restart leases, as etcd does after an outage, a task ends only
// with an answer, unless there are more than maxOldCleanups.
type cleanupQueue struct {
	ready   []cleanupTask // to be run; those before first have been
	first   int
	later   []cleanupTask // failed; retried from notBefore on
	workers int
	running int           // workers in an attempt; the others wait for later tasks
	idle    chan struct{} // closed when no work is left, if Close waits for that
	refused int           // tasks given up since the Client was closed
	cause   error         // of the last of these

	// incoming counts the tasks that runEffects has not added yet: contexts end first.
	incoming int
}

type cleanupTask struct {
	ref       driver.Ref
	tries     int
	notBefore int64 // no attempt before this time
	deadline  int64
	abandoned bool // later calls for the key wait for the first attempt; see abandonedClaims
}

// maxCleaners limits the concurrent attempts, cleanupTimeout the length of one attempt, and
// maxCleanupPause the pause between two attempts of a task. An attempt that hangs, a pause
// and the next attempt together take less than a second: leftover claims are released within
// that time after a fault ends.
const (
	maxCleaners     = 32
	cleanupTimeout  = 600 * time.Millisecond
	maxCleanupPause = 200 * time.Millisecond

	// maxOldCleanups limits the tasks that are kept although the lease should have ended.
	maxOldCleanups = 4096
)

// cleanUp hands a finished claim to cleanup. It runs under mu; unlock starts the work after
// it has ended the contexts of the claim's guards.
func (c *Client) cleanUp(cl *claim) {
	c.endContexts(cl)
	c.cleanUpRef(cl.ref())
}

// withdrawTimeout limits how long a call withdraws its claim from a local backend, which
// usually answers in microseconds. Tests change it.
var withdrawTimeout = 50 * time.Millisecond

// cleanUpUnwanted is cleanUp for a finished claim that no caller received. On a local backend it
// returns the claim instead; the caller passes it to withdraw after unlock.
func (c *Client) cleanUpUnwanted(cl *claim) *claim {
	if !c.caps.Remote {
		return cl
	}
	c.endContexts(cl)
	c.cleanUpAbandoned(cl.ref())
	return nil
}

// withdraw releases a claim on a local backend before its call returns. Otherwise the next
// unlock could grant the key to a waiter that has left. If it fails, cleanup takes over.
//
//nolint:contextcheck,nolintlint // the context of the caller has ended; the linter reports this in the callers
func (c *Client) withdraw(cl *claim) {
	if cl == nil {
		return
	}
	ctx, cancel := context.WithTimeout(c.cleanup, withdrawTimeout)
	defer cancel()
	err := c.releaseRef(ctx, cl.ref())
	if err == nil {
		return
	}
	c.mu.Lock()
	c.cleanUp(cl)
	c.unlock()
}

// recoverHook is deferred where no caller could recover from a panic of a hook of the backend's client.
func recoverHook(err *error) {
	if p := recover(); p != nil {
		*err = fmt.Errorf("%w: a hook panicked: %v", ErrUnknownOutcome, p)
	}
}

// releaseRef releases a claim that no caller waits for, so that no caller could recover from a panic of a hook
// of the backend's client.
func (c *Client) releaseRef(ctx context.Context, r driver.Ref) (err error) {
	defer recoverHook(&err)
	_, err = c.store.Release(ctx, r)
	return err
}

// endContexts makes the next unlock end the contexts of a claim's guards before cleanup receives
// the claim. The goroutine that ended the guards may not have done so yet.
func (c *Client) endContexts(cl *claim) {
	guards := []*Guard{cl.guard}
	if cl.handoff != nil {
		guards = append(guards, cl.handoff.previous)
	}
	for _, g := range guards {
		if g != nil && !g.holds() && g.own != nil && g.own.cancel != nil {
			c.cancellations = append(c.cancellations, cancellation{g.own.cancel, g.own.cause})
		}
	}
}

func (c *Client) cleanUpRef(r driver.Ref) {
	c.cleanups = append(c.cleanups, cleanupTask{ref: r, deadline: after(c.now(), driver.TombstoneTTL(r.TTL))})
}

func (q *cleanupQueue) add(s []cleanupTask) {
	q.incoming -= len(s)
	q.ready = append(q.ready, s...)
}

// startCleaners returns how many workers the caller must start, and counts them.
func (c *Client) startCleaners() int {
	q := &c.cleanupQueue
	n := min(q.count()+q.running, maxCleaners) - q.workers
	if n <= 0 || c.cleanup.Err() != nil {
		return 0
	}
	if q.workers > 0 {
		n = min(n, len(q.ready)-q.first) // one worker is enough to wait for later tasks
	}
	q.workers += n
	return n
}

func (q *cleanupQueue) count() int { return len(q.ready) - q.first + len(q.later) }

func (q *cleanupQueue) busy() bool { return q.workers > 0 || q.incoming > 0 }

// runCleaner runs tasks until none is ready. The last worker also waits for tasks that are
// retried later.
func (c *Client) runCleaner() {
	q, running := &c.cleanupQueue, 0
	for {
		c.mu.Lock()
		q.running -= running
		s, wait, ok := q.next(c.now())
		if !ok || c.cleanup.Err() != nil {
			if ok && wait == 0 {
				q.ready = append(q.ready, s)
			}
			c.endCleaner()
			c.unlock()
			return
		}
		running = 0
		if wait == 0 {
			running = 1
		}
		q.running += running
		c.unlock()
		if wait == 0 {
			c.cleanUpOne(s)
			continue
		}
		t := time.NewTimer(wait)
		select {
		case <-t.C:
		case <-c.cleanup.Done():
		}
		t.Stop()
	}
}

func (c *Client) endCleaner() {
	q := &c.cleanupQueue
	q.workers--
	q.signalIdle()
}

// signalIdle wakes Close if no work is left.
func (q *cleanupQueue) signalIdle() {
	if !q.busy() && q.idle != nil {
		close(q.idle)
		q.idle = nil
	}
}

// next returns the first task that is due, or how long to wait for one. It returns false if
// the worker must end: only the last worker waits.
func (q *cleanupQueue) next(now int64) (s cleanupTask, wait time.Duration, ok bool) {
	if q.first == len(q.ready) {
		wait = q.refill(now)
	}
	if q.first < len(q.ready) {
		s, q.ready[q.first] = q.ready[q.first], cleanupTask{}
		q.first++
		return s, 0, true
	}
	return cleanupTask{}, wait, len(q.later) > 0 && q.workers == 1
}

// refill moves due tasks from later to ready, and returns the time until the next one is due,
// at least 10 ms, so that several become due together.
func (q *cleanupQueue) refill(now int64) time.Duration {
	q.ready, q.first = q.ready[:0], 0
	if len(q.later) == 0 {
		q.ready, q.later = nil, nil
		return 0
	}
	kept, soonest := q.later[:0], int64(never)
	for _, s := range q.later {
		if s.notBefore <= now {
			q.ready = append(q.ready, s)
			continue
		}
		kept, soonest = append(kept, s), min(soonest, s.notBefore)
	}
	q.later = kept
	return max(time.Duration(soonest-now), 10*time.Millisecond)
}

func (c *Client) cleanUpOne(s cleanupTask) {
	ctx, cancel := context.WithTimeout(c.cleanup, min(cleanupTimeout, time.Duration(c.closeBy.Load()-c.now())))
	err := c.releaseRef(ctx, s.ref)
	for errors.Is(err, sharedtimeout.ErrAttemptTimeout) {
		err = c.releaseRef(ctx, s.ref)
	}
	cancel()
	if err == nil && !s.abandoned {
		return
	}
	c.mu.Lock()
	defer c.unlock()
	c.abandonedTried(&s)
	if err == nil {
		return
	}
	now := c.now()
	if driver.ClassOf(err) == driver.Fatal || c.isTooOld(&s, now) {
		c.logGaveUp(s.ref.Key, err)
		if c.closed {
			c.cleanupQueue.refused++
			c.cleanupQueue.cause = err
		}
		return
	}
	s.notBefore = after(now, min(c.pause(s.ref.ID, s.tries), maxCleanupPause))
	s.tries++
	c.cleanupQueue.later = append(c.cleanupQueue.later, s)
}

// isTooOld reports whether to give up a task because the lease has ended its claim.
func (c *Client) isTooOld(s *cleanupTask, now int64) bool {
	return now >= s.deadline && (!c.caps.LeaseRestarts || c.cleanupQueue.count() >= maxOldCleanups)
}

// cleanUpAll waits until everything is cleaned up or the cleanup context ends. It returns how
// many claims are left, and the cause if the backend refused one.
func (c *Client) cleanUpAll() (int, error) {
	c.mu.Lock()
	idle := make(chan struct{})
	if !c.cleanupQueue.busy() {
		close(idle)
	} else {
		c.cleanupQueue.idle = idle
	}
	c.unlock()
	<-idle
	c.mu.Lock()
	defer c.unlock()
	return c.cleanupQueue.count() + c.cleanupQueue.refused, c.cleanupQueue.cause
}
