// Package once runs a scheduled job on one of several processes, at most once per interval, on any backend of package
// dlock with leases: memory, Redis, Redlock and etcd. Its Cache computes a missing value in one of several processes.
//
// Every process schedules the job and calls Do. One of them runs it; the others find the key of the job locked, and skip.
// The key stays locked for the hold of the job, also if the job takes milliseconds, fails, or its process dies.
//
//	job, err := once.New(locks, "report", time.Hour)
//	if err != nil {
//		return err
//	}
//	ran, err := job.Do(ctx, func(ctx context.Context) error { return ship(ctx) })
//
// # What at most once means
//
// The hold is what ShedLock calls lockAtLeastFor: the interval minus a tenth of it, and minus at most a minute, or minus 65 minutes from
// 12 hours on; see WithHold. The backend grants the key to a run, and to no other run until the hold has passed, by the lease that it
// keeps. No two clocks are compared. A run begins within a twentieth of the hold after its grant, or not at all. So between the
// beginnings of two runs there is at least 19/20 of the hold. Only a process that is paused between this check and the first
// statement of the job begins later; fencing is for that.
//
// If the processes call Do at the same times of the day, the job runs once for each of these times, as long as their
// clocks differ by less than the interval minus the hold. If they differ by more, the job still does not run twice; but after
// a process has died, one time may be skipped.
//
// If the times are not equally far apart, the interval is the shortest gap between two of them. At local times, that is an hour less on the
// day when summer time begins. From 12 hours on, the default hold leaves room for it; a job that runs every six hours of local
// time needs an interval of five hours, and one at 9:00 and 17:00 needs eight.
//
// While a job runs, its lease is extended every ten seconds, or every third of WithLease if that is shorter: if the lock was taken
// away, the context of the job ends by then. The last extension is at its end.
//
// A job that takes longer than the hold keeps the key until it has ended, so it does not overlap with itself. If its
// process dies, the key is free after the rest of the hold, or of WithLease if that is later. A process that was
// paused for longer than its lease may still work when the next run begins: its context has ended by then, and fencing
// keeps its writes out; see docs/fencing.md.
//
// The promise is that of the backend: see the table in README.md. On Redis, a failover can lose the key of the job. On
// etcd, a change of the leader restarts leases, so that the next run may come later; and leases last for whole seconds and
// end up to half a second late, so an interval should be ten seconds or more.
package once

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/internal/recipes"
	"github.com/ceyewan/genesis/pkg/xerrors"
)

// ErrNotRecorded: the job has run, but the record of the run could not be stored. See Job.Last.
var ErrNotRecorded = xerrors.New("run_not_recorded", "the run was not recorded")

// A Job is a job that runs at most once per interval. Its methods may be called from any goroutine and in any process.
type Job struct {
	locks *dlock.Client
	key   string
	every time.Duration
	settings
}

const (
	maxKey      = 1024           // bytes, as in package dlock
	maxLease    = 24 * time.Hour // as in package dlock
	maxSlack    = time.Minute
	halfDay     = 12 * time.Hour
	summerSlack = 65 * time.Minute // of a job at a local time: when summer time begins, two times are an hour closer
	dfltLease   = 30 * time.Second
	recordsKept = 10
)

// New returns a Job that runs at most once per interval: every is the shortest time from one run to the next. It does no I/O. It
// uses the locks key and key+":runs" of the Client. All processes must use the same key, and should use the same interval.
func New(locks *dlock.Client, key string, every time.Duration, opts ...Option) (*Job, error) {
	j := &Job{locks: locks, key: key, every: every, settings: settings{records: true}}
	for i, opt := range opts {
		if opt == nil {
			return nil, fmt.Errorf("%w: once: option %d is nil", dlock.ErrInvalidConfig, i)
		}
		opt(&j.settings)
	}
	switch {
	case locks == nil:
		return nil, fmt.Errorf("%w: once: the Client is nil", dlock.ErrInvalidConfig)
	case key == "" || len(key)+len(recipes.RunsSuffix) > maxKey:
		return nil, fmt.Errorf("%w: once: the key has %d bytes, not 1 to %d", dlock.ErrInvalidKey, len(key), maxKey-len(recipes.RunsSuffix))
	case every <= 0:
		return nil, fmt.Errorf("%w: once: the interval %v of %q is not positive", dlock.ErrInvalidConfig, every, key)
	}
	if err := j.setDefaults(every); err != nil {
		return nil, fmt.Errorf("%w: once: %w", dlock.ErrInvalidConfig, err)
	}
	return j, nil
}

// Key returns the name of the lock.
func (j *Job) Key() string { return j.key }

// Hold returns how long the key stays locked from the beginning of a run on. See WithHold.
func (j *Job) Hold() time.Duration { return j.hold }

// Do runs fn, unless the job has run within its hold or is running. ran says whether it did. If it did not and err is nil, it
// was not due: see WithWait for waiting instead.
//
// The context of fn ends with ctx, or if the lock is lost; fn must return then. It carries the Guard: pass the fencing token
// of dlock.FromContext to what the job writes to. After an error or a panic of fn the job counts as run, unless
// WithRetry says otherwise.
//
// The error is that of fn, joined with dlock.ErrOwnershipLost if the lock was lost while fn ran, and with ErrNotRecorded if
// the record was not stored. On a backend without leases it is dlock.ErrUnsupported. Close the Client only after Do has
// returned: Close releases the key of a job that is running.
func (j *Job) Do(ctx context.Context, fn func(ctx context.Context) error) (ran bool, err error) {
	if ctx == nil || fn == nil {
		return false, fmt.Errorf("%w: once: the context or the function is nil", dlock.ErrInvalidConfig)
	}
	r, err := j.acquire(ctx)
	if errors.Is(err, dlock.ErrLockHeldByOther) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return true, r.run(ctx, fn)
}

// acquire locks the key for a run. If a heartbeat of the waiter was not answered and may still arrive, it asks again with a new
// claim, as long as the wait lasts, and once more without waiting.
func (j *Job) acquire(ctx context.Context) (*running, error) {
	started := time.Now()
	for wait := j.wait; ; wait = max(j.wait-time.Since(started), 0) {
		asked := time.Now()
		guard, err := j.locks.Acquire(ctx, j.key, j.options(wait)...)
		if err != nil {
			return nil, err
		}
		begun, err := j.begin(ctx, guard, asked, wait > 0)
		if err == nil && ctx.Err() != nil { // it ended when the lock was granted
			err = fmt.Errorf("once: %q: %w: %w", j.key, ctx.Err(), context.Cause(ctx))
		}
		if err == nil {
			return &running{Job: j, guard: guard, begun: begun}, nil
		}
		failed := guard.Unlock(ctx)
		if !errors.Is(err, errShortLease) || wait == 0 || failed != nil { // else the next claim may meet this one
			return nil, errors.Join(err, failed)
		}
	}
}

func (j *Job) options(wait time.Duration) []dlock.LockOption {
	ttl := j.hold
	if wait > 0 { // on etcd, a waiter that has died stays for its TTL; begin extends it to the hold
		ttl = min(j.lease, j.hold)
	}
	opts := []dlock.LockOption{dlock.WithTTL(ttl), dlock.WithoutRenewal(), dlock.WithWait(wait)}
	if j.info != (dlock.Info{}) {
		opts = append(opts, dlock.WithInfo(j.info))
	}
	return opts
}

// errShortLease: the whole hold was answered in time, but the lease may end earlier.
var errShortLease = fmt.Errorf("%w: an earlier call was not answered and may still shorten the lease", dlock.ErrUnavailable)

// maxTries is how often begin asks for the whole hold.
const maxTries = 5

// begin returns the time from which the hold counts at the earliest. If that is long ago, it makes the hold count from now: a
// process that was paused after its grant would otherwise begin shortly before the next run. A lock that was waited for has
// only a waiter's lease.
func (j *Job) begin(ctx context.Context, guard *dlock.Guard, asked time.Time, waited bool) (time.Time, error) {
	if guard.Remaining() == math.MaxInt64 {
		return time.Time{}, fmt.Errorf("%w: once: the backend has no leases, so %q cannot stay locked after the run; use Redis or etcd", dlock.ErrUnsupported, j.key)
	}
	inTime := func() bool { return time.Since(asked) < j.hold/20 }
	fresh := func() bool { return inTime() && guard.Remaining() > j.hold*4/5 } // it also counts the time for which the machine was suspended
	if !waited && fresh() {
		return asked, nil
	}
	for range maxTries {
		asked = time.Now()
		if err := guard.Extend(ctx, j.hold); err != nil {
			return time.Time{}, err
		}
		if fresh() {
			return asked, nil
		}
	}
	if inTime() {
		return time.Time{}, fmt.Errorf("once: %q: %w", j.key, errShortLease)
	}
	return time.Time{}, fmt.Errorf("%w: once: the hold of %q, %v, is too short: the backend takes longer than a twentieth of it to answer", dlock.ErrUnavailable, j.key, j.hold)
}
