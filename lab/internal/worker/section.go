package worker

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/ceyewan/genesis/lab/internal/event"
	"github.com/ceyewan/genesis/lab/internal/mono"
	"github.com/ceyewan/genesis/lab/internal/store"
	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// A holding is what is held in a section: a Guard, or several.
type holding interface {
	Context() context.Context
	Extend(ctx context.Context, ttl time.Duration) error
}

// A part is one of the keys of a section.
type part struct {
	task
	token int64
	seen  store.Values
}

// section is the critical section. Its end is when the holder learned that the lock
// is lost, if it is lost, however long the last line of the work takes; or when the
// process began to close the Client. owner is a context that has the lock.
func (w *worker) section(ctx, owner context.Context, s *session, t task, of holding, parts ...part) {
	var lostAt atomic.Int64
	held := of.Context()
	defer context.AfterFunc(held, func() { lostAt.CompareAndSwap(0, mono.Now()) })()
	for _, p := range parts {
		w.log.Add(event.Event{Kind: event.Enter, Key: p.key, Attempt: p.attempt, Fence: p.token})
	}
	w.work(ctx, owner, s, t, of, parts)
	at, cause := mono.Now(), error(nil)
	if held.Err() != nil {
		cause = context.Cause(held)
	}
	for _, p := range parts {
		w.log.Add(p.exit(s, at, lostAt.Load(), cause))
	}
}

// exit is the end of the section for one of its keys. Of several, all are left when one is lost, and only
// that one is lost.
func (p part) exit(s *session, at, lostAt int64, cause error) event.Event {
	exit := event.Event{At: at, Kind: event.Exit, Key: p.key, Attempt: p.attempt, Fence: p.token, Note: event.Done}
	switch {
	case cause == nil:
	case errors.Is(cause, dlock.ErrClosed):
		exit.Note, exit.At = event.Parted, s.closedAt()
	default:
		if concerns(cause, p.key) {
			exit.Note = event.Lost
		}
		if lostAt != 0 {
			exit.Dur = max(exit.At-lostAt, 0)
		}
		if !p.careless {
			exit.At, exit.Dur = exit.At-exit.Dur, 0
		}
	}
	return exit
}

// work reads, takes its time, and writes what it has read plus one. Those that share a
// lock only read.
func (w *worker) work(ctx, owner context.Context, s *session, t task, of holding, parts []part) {
	for i := range parts {
		p := &parts[i]
		var err error
		if p.seen, err = w.store.Read(p.key, p.token); err != nil {
			return
		}
	}
	held := of.Context()
	if t.ownLease {
		w.lease(t, of)
	}
	if t.again {
		w.inside(owner, s, t, parts[0].token)
	}
	if t.extend > 0 {
		t.stay(ctx, held, t.hold/2)
		w.extend(ctx, t, of, parts)
		t.hold /= 2
	}
	t.stay(ctx, held, t.hold)
	s.write(func() {
		for _, p := range parts {
			sent := mono.Now() // before the look at the lock, which may end while the write is on its way
			if (t.careless || held.Err() == nil) && t.mode == driver.Exclusive {
				_ = w.store.Write(store.Write{Sent: sent, Key: p.key, Attempt: p.attempt, Fence: p.token}, p.seen)
			}
		}
	})
}

// stay lets time pass, until the lock is lost unless the holder does not care.
func (t task) stay(ctx, held context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	lost := held.Done()
	if t.careless {
		lost = nil
	}
	select {
	case <-timer.C:
	case <-ctx.Done():
	case <-lost:
	}
}
