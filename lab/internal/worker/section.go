package worker

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/ceyewan/genesis/lab/internal/event"
	"github.com/ceyewan/genesis/lab/internal/mono"
	"github.com/ceyewan/genesis/lab/internal/schedule"
	"github.com/ceyewan/genesis/pkg/dlock"
)

// A task is one attempt to lock and work.
type task struct {
	attempt, key    string
	ttl, wait, hold time.Duration
	// careless holders do not look at their context before they write, as programs
	// that are stopped between the look and the write.
	careless bool
}

// epoch is how long a quick key is used. Its history stays short enough to be
// checked whole.
const epoch = 4 * time.Second

func (w *worker) draw(r *rand.Rand, hand, n int) task {
	o := w.orders
	t := task{
		attempt: fmt.Sprintf("%s/%d/%d", o.Name, hand, n), ttl: o.TTL, wait: 3 * o.TTL,
		careless: o.Mode == schedule.Beyond && r.IntN(2) == 0,
	}
	switch hand {
	case 0: // long enough for faults to strike a holder
		t.key, t.wait = fmt.Sprintf("slow-%d", o.Position%2), 8*o.TTL
		t.hold = o.TTL + time.Duration(r.Int64N(int64(3*o.TTL)))
		return t
	case 1:
		t.key = fmt.Sprintf("brisk-%d", r.IntN(2))
		t.hold = time.Duration(20+r.IntN(180)) * time.Millisecond
		return t
	}
	t.key = fmt.Sprintf("quick-%d-%d", r.IntN(3), (mono.Now()-o.Started)/int64(epoch))
	t.hold = time.Duration(r.IntN(5)) * time.Millisecond
	if r.IntN(2) == 0 {
		t.ttl = 5 * o.TTL // what is left of it by mistake is seen at the end
	}
	switch r.IntN(10) {
	case 0, 1:
		t.wait = time.Duration(10+r.IntN(50)) * time.Millisecond
	case 2:
		t.wait = 0
	}
	return t
}

// attempt locks, works and unlocks. It reports whether the lock was held.
func (w *worker) attempt(ctx context.Context, t task) bool {
	w.log.Add(event.Event{Kind: event.Call, Key: t.key, Attempt: t.attempt, Dur: int64(t.patience())})
	guard, err := w.acquire(ctx, t)
	if err != nil {
		w.log.Add(event.Event{Kind: event.Failed, Key: t.key, Attempt: t.attempt, Note: brief(err)})
		return errors.Is(err, dlock.ErrLockHeldByOther)
	}
	w.section(ctx, t, guard)
	unlockCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), t.ttl)
	defer cancel()
	err = guard.Unlock(unlockCtx)
	w.log.Add(event.Event{Kind: event.Released, Key: t.key, Attempt: t.attempt, Note: brief(err)})
	return true
}

// patience is how long the call may take. One that does not wait still needs an answer.
func (t task) patience() time.Duration {
	if t.wait == 0 {
		return t.ttl
	}
	return t.wait
}

func (w *worker) acquire(ctx context.Context, t task) (*dlock.Guard, error) {
	ctx, cancel := context.WithTimeout(ctx, t.patience())
	defer cancel()
	if t.wait == 0 {
		return w.client.TryAcquire(ctx, t.key, dlock.WithTTL(t.ttl))
	}
	return w.client.Acquire(ctx, t.key, dlock.WithTTL(t.ttl))
}

// section is the critical section. Its end is when the holder learned that the lock
// is lost, if it is lost, however long the last line of the work takes.
func (w *worker) section(ctx context.Context, t task, guard *dlock.Guard) {
	var lostAt atomic.Int64
	held := guard.Context()
	defer context.AfterFunc(held, func() { lostAt.CompareAndSwap(0, mono.Now()) })()
	w.log.Add(event.Event{Kind: event.Enter, Key: t.key, Attempt: t.attempt, Fence: guard.Token()})
	w.work(ctx, t, guard)
	exit := event.Event{At: mono.Now(), Kind: event.Exit, Key: t.key, Attempt: t.attempt, Fence: guard.Token(), Note: event.Done}
	if held.Err() != nil {
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

// work reads, takes its time, and writes what it has read plus one.
func (w *worker) work(ctx context.Context, t task, guard *dlock.Guard) {
	held := guard.Context()
	seen, err := w.store.Read(t.key, guard.Token())
	if err != nil {
		return
	}
	timer := time.NewTimer(t.hold)
	defer timer.Stop()
	if t.careless {
		select {
		case <-timer.C:
		case <-ctx.Done():
		}
	} else {
		select {
		case <-timer.C:
		case <-ctx.Done():
		case <-held.Done():
		}
		if held.Err() != nil {
			return
		}
	}
	_ = w.store.Write(t.key, guard.Token(), t.attempt, seen)
}

// brief is the kind of an error.
func brief(err error) string {
	for _, kind := range []error{dlock.ErrUnknownOutcome, dlock.ErrOwnershipLost, dlock.ErrLockHeldByOther, dlock.ErrUnavailable, dlock.ErrDenied, dlock.ErrNotReady, dlock.ErrClosed, context.DeadlineExceeded, context.Canceled} {
		if errors.Is(err, kind) {
			return kind.Error()
		}
	}
	if err != nil {
		return err.Error()
	}
	return ""
}
