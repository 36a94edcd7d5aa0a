// Package oncegocron lets several schedulers of github.com/go-co-op/gocron/v2 share their jobs: each run of a job happens on
// one of them. Pass a Locker to gocron.WithDistributedLocker, or an Elector to gocron.WithDistributedElector. A job is not told
// if its lock is lost, because gocron passes it no context of ours: use once.Job itself where that matters.
package oncegocron

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/go-co-op/gocron/v2"

	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/once"
	"github.com/ceyewan/genesis/pkg/xerrors"
)

// ErrNotDue: the job has run within its interval, or is running, on this scheduler or another.
var ErrNotDue = xerrors.New("not_due", "the job is not due")

// A Locker implements gocron.Locker: a job runs at most once per interval, on one of several schedulers.
type Locker struct {
	locks *dlock.Client
	every time.Duration
	opts  []once.Option
}

var _ gocron.Locker = (*Locker)(nil)

// NewLocker returns a Locker for jobs with this interval. For jobs with other intervals, give each its own Locker with
// gocron.WithDistributedJobLocker. Give every job a name, with gocron.WithName: it is the key of the job, and the
// name of a Go function differs between programs. The opts are those of once.New.
//
// gocron does not tell a Locker whether the job failed, so the record of a run says how long it took, and that it was ok.
// once.WithRetry has no effect.
func NewLocker(locks *dlock.Client, every time.Duration, opts ...once.Option) (*Locker, error) {
	if _, err := once.New(locks, "job", every, opts...); err != nil {
		return nil, err
	}
	return &Locker{locks, every, opts}, nil
}

// Lock implements gocron.Locker. It returns ErrNotDue if the job is not to run now.
func (l *Locker) Lock(ctx context.Context, key string) (gocron.Lock, error) {
	job, err := once.New(l.locks, key, l.every, l.opts...)
	if err != nil {
		return nil, err
	}
	r := &lock{begun: make(chan struct{}), unlocked: make(chan struct{}), ended: make(chan struct{})}
	go func() {
		defer close(r.ended)
		r.ran, r.err = job.Do(ctx, func(context.Context) error {
			close(r.begun)
			<-r.unlocked
			return nil
		})
	}()
	select {
	case <-r.begun:
		return r, nil
	case <-r.ended:
	}
	if r.err != nil {
		return nil, r.err
	}
	return nil, fmt.Errorf("%w: %q", ErrNotDue, key)
}

// A lock is held while gocron runs a job.
type lock struct {
	begun, unlocked, ended chan struct{}
	released               atomic.Bool

	// After ended.
	ran bool
	err error
}

// Unlock implements gocron.Lock. The key stays locked for the rest of the job's hold.
func (r *lock) Unlock(context.Context) error {
	if r.released.Swap(true) {
		return fmt.Errorf("%w: it was unlocked before", dlock.ErrLockNotHeld)
	}
	close(r.unlocked)
	<-r.ended // within seconds, whatever the backend does
	if errors.Is(r.err, once.ErrNotRecorded) && !errors.Is(r.err, dlock.ErrOwnershipLost) {
		return nil // the job has run as it should
	}
	return r.err
}
