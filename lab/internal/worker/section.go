package worker

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/ceyewan/genesis/lab/internal/event"
	"github.com/ceyewan/genesis/lab/internal/mono"
	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// section is the critical section. Its end is when the holder learned that the lock
// is lost, if it is lost, however long the last line of the work takes; or when the
// process began to close the Client. owner is a context that has the lock.
func (w *worker) section(ctx, owner context.Context, s *session, t task, guard *dlock.Guard) {
	var lostAt atomic.Int64
	held := guard.Context()
	defer context.AfterFunc(held, func() { lostAt.CompareAndSwap(0, mono.Now()) })()
	w.log.Add(event.Event{Kind: event.Enter, Key: t.key, Attempt: t.attempt, Fence: guard.Token()})
	w.work(ctx, owner, s, t, guard)
	exit := event.Event{At: mono.Now(), Kind: event.Exit, Key: t.key, Attempt: t.attempt, Fence: guard.Token(), Note: event.Done}
	switch {
	case held.Err() == nil:
	case errors.Is(context.Cause(held), dlock.ErrClosed):
		exit.Note, exit.At = event.Parted, s.closedAt()
	default:
		exit.Note = event.Lost
		if at := lostAt.Load(); at != 0 {
			exit.Dur = max(exit.At-at, 0)
		}
		if !t.careless {
			exit.At, exit.Dur = exit.At-exit.Dur, 0
		}
	}
	w.log.Add(exit)
}

// work reads, takes its time, and writes what it has read plus one. Those that share a
// lock only read.
func (w *worker) work(ctx, owner context.Context, s *session, t task, guard *dlock.Guard) {
	seen, err := w.store.Read(t.key, guard.Token())
	if err != nil {
		return
	}
	if t.again {
		w.inside(owner, s, t, guard)
	}
	if t.extend > 0 {
		t.stay(ctx, guard, t.hold/2)
		w.extend(ctx, t, guard)
		t.hold /= 2
	}
	t.stay(ctx, guard, t.hold)
	s.write(func() {
		if (t.careless || guard.Context().Err() == nil) && t.mode == driver.Exclusive {
			_ = w.store.Write(t.key, guard.Token(), t.attempt, seen)
		}
	})
}

// stay lets time pass, until the lock is lost unless the holder does not care.
func (t task) stay(ctx context.Context, guard *dlock.Guard, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	lost := guard.Done()
	if t.careless {
		lost = nil
	}
	select {
	case <-timer.C:
	case <-ctx.Done():
	case <-lost:
	}
}
