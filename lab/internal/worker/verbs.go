package worker

import (
	"context"
	"errors"
	"time"

	"github.com/ceyewan/genesis/lab/internal/event"
	"github.com/ceyewan/genesis/lab/internal/mono"
	"github.com/ceyewan/genesis/pkg/dlock"
)

// attempt locks, works and unlocks. It reports whether the backend seems well.
func (w *worker) attempt(ctx context.Context, t task) bool {
	parts := t.parts()
	for _, p := range parts {
		w.log.Add(event.Event{Kind: event.Call, Key: p.key, Attempt: p.attempt, Dur: int64(p.patience()), Verb: string(p.verb), Plan: p.plan()})
	}
	s := w.session()
	var err error
	switch t.verb {
	case lock, tryLock:
		err = w.byKey(ctx, s, t)
	case do:
		err = w.byDo(ctx, s, t)
	case acquireAll:
		err = w.byGuards(ctx, s, t, parts)
	case doAll:
		err = w.byDoAll(ctx, s, t, parts)
	default:
		err = w.byGuard(ctx, s, t)
	}
	if err == nil {
		return true
	}
	for _, p := range parts {
		note := brief(err)
		if !concerns(err, p.key) {
			note = event.Withdrawn
		}
		w.log.Add(event.Event{Kind: event.Failed, Key: p.key, Attempt: p.attempt, Note: note})
	}
	return errors.Is(err, dlock.ErrLockHeldByOther) || errors.Is(err, dlock.ErrLockAlreadyHeld) || errors.Is(err, context.Canceled)
}

// patient is the context of a call. stay keeps it from ending in the hold.
func (t task) patient(ctx context.Context) (patient context.Context, stay, cancel func()) {
	leave := t.patience()
	if t.cancel == 0 && t.hasWait && t.wait > 0 {
		leave += t.ttl // WithWait is to end the wait; one of 0 leaves that to the context, as patience says
	}
	if t.cancel == 0 && t.verb != do && t.verb != doAll {
		timed, stop := context.WithTimeout(ctx, leave)
		return timed, func() {}, stop
	}
	left, stop := context.WithCancel(ctx)
	timer := time.AfterFunc(leave, stop)
	return left, func() { timer.Stop() }, func() { timer.Stop(); stop() }
}

// released logs the end of an attempt that had the lock, and has released it since began.
func (w *worker) released(t task, began int64, err error) {
	now := mono.Now()
	w.log.Add(event.Event{At: now, Kind: event.Released, Key: t.key, Attempt: t.attempt, Dur: now - began, Note: brief(err)})
}

// unlocking is the context of a release, which outlives what the worker is told, and the time for which
// Unlock tries.
func (t task) unlocking(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), t.ttl)
}

func (w *worker) byGuard(ctx context.Context, s *session, t task) error {
	patient, _, cancel := t.patient(ctx)
	defer cancel()
	seek := s.client.Acquire
	if t.verb == tryAcquire {
		seek = s.client.TryAcquire
	}
	guard, err := seek(patient, t.key, t.options()...)
	if err != nil {
		return err
	}
	w.section(ctx, guard.Context(), s, t, guard, part{task: t, token: guard.Token()})
	unlock, stop := t.unlocking(ctx)
	defer stop()
	began := mono.Now()
	w.released(t, began, t.giveUp(guard, func() error { return guard.Unlock(unlock) }))
	return nil
}

// giveUp ends a lock: by an unlock, or by leaving it to its lease.
func (t task) giveUp(g *dlock.Guard, unlock func() error) error {
	if t.leave {
		return g.Leave()
	}
	return unlock()
}

func (w *worker) byKey(ctx context.Context, s *session, t task) error {
	patient, _, cancel := t.patient(ctx)
	defer cancel()
	owner := dlock.OwnerContext(patient)
	var err error
	if t.verb == tryLock {
		var got bool
		got, err = s.client.TryLock(owner, t.key, t.options()...)
		if err == nil && !got {
			err = dlock.ErrLockHeldByOther
		}
	} else {
		err = s.client.Lock(owner, t.key, t.options()...)
	}
	if err != nil {
		return err
	}
	guard, ok := s.client.Held(t.key)
	if ok { // the owner outlives the wait
		w.section(ctx, context.WithoutCancel(owner), s, t, guard, part{task: t, token: guard.Token()})
	}
	unlock, stop := t.unlocking(ctx)
	defer stop()
	began := mono.Now()
	byName := func() error { return s.client.Unlock(unlock, t.key) }
	if !ok { // it was over before it could be looked at
		_ = byName()
		return dlock.ErrOwnershipLost
	}
	w.released(t, began, t.giveUp(guard, byName))
	return nil
}

// byDo has the context end the wait, and not the hold.
func (w *worker) byDo(ctx context.Context, s *session, t task) error {
	patient, stay, cancel := t.patient(ctx)
	defer cancel()
	done := int64(0)
	err := s.client.Do(patient, t.key, func(inner context.Context) error {
		stay()
		guard, _ := dlock.FromContext(inner)
		w.section(ctx, inner, s, t, guard, part{task: t, token: guard.Token()})
		done = mono.Now()
		return nil
	}, t.options()...)
	if done == 0 {
		return err
	}
	w.released(t, done, err)
	return nil
}

// inside asks for the key that is held once more, and gives it back. owner is a context
// that has it.
func (w *worker) inside(owner context.Context, s *session, t task, token int64) {
	began := mono.Now()
	ctx, cancel := context.WithTimeout(owner, t.ttl)
	defer cancel()
	see := func(g *dlock.Guard, ok bool) {
		if ok {
			token = g.Token()
		}
	}
	how := map[verb]verb{lock: tryLock, do: do}[t.verb]
	var err error
	switch how {
	case do:
		err = s.client.Do(ctx, t.key, func(inner context.Context) error {
			see(dlock.FromContext(inner))
			return nil
		})
	case tryLock:
		var got bool
		got, err = s.client.TryLock(ctx, t.key)
		if err == nil && !got {
			err = dlock.ErrLockHeldByOther
		}
	default:
		how = lock
		err = s.client.Lock(ctx, t.key)
	}
	locked := err == nil && how != do
	if locked {
		see(s.client.Held(t.key))
	}
	now := mono.Now()
	w.log.Add(event.Event{At: now, Kind: event.Again, Key: t.key, Attempt: t.attempt, Fence: token, Dur: now - began, Note: brief(err), Verb: string(how)})
	if locked {
		rest(owner, time.Millisecond)
		_ = s.client.Unlock(ctx, t.key)
	}
}

// extend asks for another lease.
func (w *worker) extend(ctx context.Context, t task, of holding, parts []part) {
	began := mono.Now()
	ctx, cancel := context.WithTimeout(ctx, t.ttl)
	defer cancel()
	err := of.Extend(ctx, t.extend)
	for _, p := range parts {
		w.log.Add(event.Event{At: began, Kind: event.Extended, Key: p.key, Attempt: p.attempt, Dur: int64(t.extend), Note: brief(errorFor(err, p.key))})
	}
}

// lease asks for the ID of the lock's own lease.
func (w *worker) lease(t task, of holding) {
	guard, ok := of.(*dlock.Guard)
	if !ok {
		return
	}
	_, err := guard.LeaseID()
	w.log.Add(event.Event{Kind: event.Leased, Key: t.key, Attempt: t.attempt, Note: brief(err)})
}

// kinds are the errors that oracles tell apart.
var kinds = []error{
	dlock.ErrUnknownOutcome, dlock.ErrOwnershipLost, dlock.ErrLockHeldByOther, dlock.ErrLockAlreadyHeld, dlock.ErrLockNotHeld,
	dlock.ErrUnavailable, dlock.ErrDenied, dlock.ErrNotReady, dlock.ErrClosed, context.DeadlineExceeded, context.Canceled,
}

// brief is the kind of an error.
func brief(err error) string {
	for _, kind := range kinds {
		if errors.Is(err, kind) {
			return kind.Error()
		}
	}
	if err != nil {
		return err.Error()
	}
	return ""
}
