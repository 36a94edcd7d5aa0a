// Package lockreader reads the locks of a backend for operators. The command dlock and the lock
// page share it.
package lockreader

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// Timeout limits a question to the backend, with its retries.
const Timeout = 10 * time.Second

const (
	pageSize   = 500 // how many keys are requested at a time
	concurrent = 16  // how many keys are inspected at a time
)

// A Reader reads the locks of one backend.
type Reader struct {
	admin           *dlock.Admin
	lists, inspects atomic.Int64
}

// New returns a Reader of what admin can see.
func New(admin *dlock.Admin) *Reader { return &Reader{admin: admin} }

// Calls returns how often the backend was asked for keys and for the claims on a key, with retries.
func (r *Reader) Calls() (lists, inspects int64) { return r.lists.Load(), r.inspects.Load() }

// An Entry is what the backend has stored for a key.
type Entry struct {
	Key    string
	Claims []dlock.Claim // the holders, then the queue in order
	At     time.Time     // when the backend had answered
	// Err says why the key cannot be read as a lock, for instance because it belongs to
	// another program.
	Err error
}

// Pages calls do with the keys that start with prefix, page by page, each page sorted. limit is
// the greatest number of keys, 0 means all. next is the cursor to continue from.
func (r *Reader) Pages(ctx context.Context, prefix, cursor string, limit int, do func(keys []string) error) (next string, err error) {
	for seen := 0; ; {
		most := pageSize
		if limit > 0 {
			most = min(most, limit-seen)
		}
		keys, next, err := r.list(ctx, prefix, cursor, most)
		if err != nil {
			return "", err
		}
		slices.Sort(keys)
		if err := do(slices.Compact(keys)); err != nil {
			return "", err
		}
		seen += len(keys)
		if next == "" || (limit > 0 && seen >= limit) {
			return next, nil
		}
		cursor = next
	}
}

func (r *Reader) list(ctx context.Context, prefix, cursor string, most int) (keys []string, next string, err error) {
	err = retry(ctx, func(ctx context.Context) (err error) {
		r.lists.Add(1)
		keys, next, err = r.admin.ListPage(ctx, prefix, cursor, most)
		return err
	})
	return keys, next, err
}

// Read inspects keys, some of them at a time, and omits those that are free by now. It ends at the
// first error, so that an outage is not reported only after a timeout for each key.
func (r *Reader) Read(ctx context.Context, keys []string) ([]Entry, error) {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	found := make([]Entry, len(keys))
	var work sync.WaitGroup
	free := make(chan struct{}, concurrent)
	for i, key := range keys {
		free <- struct{}{}
		if ctx.Err() != nil {
			break
		}
		work.Go(func() {
			entry, err := r.entry(ctx, key)
			if err != nil {
				stop(err) // before another key takes the place
			}
			found[i] = entry
			<-free
		})
	}
	work.Wait()
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	return slices.DeleteFunc(found, func(e Entry) bool { return len(e.Claims) == 0 && e.Err == nil }), nil
}

// entry reads one key. A key that cannot be read as a lock does not hide the others.
func (r *Reader) entry(ctx context.Context, key string) (Entry, error) {
	claims, err := r.Inspect(ctx, key)
	e := Entry{Key: key, Claims: claims, At: time.Now()}
	if err == nil || (driver.ClassOf(err) != driver.Fatal && !IsUsage(err)) {
		return e, err
	}
	e.Err = err
	var wrapped *dlock.Error
	if errors.As(err, &wrapped) {
		e.Err = wrapped.Err // the key is shown anyway
	}
	return e, nil
}

// Inspect returns the claims on key.
func (r *Reader) Inspect(ctx context.Context, key string) (claims []dlock.Claim, err error) {
	err = retry(ctx, func(ctx context.Context) (err error) {
		r.inspects.Add(1)
		claims, err = r.admin.Inspect(ctx, key)
		return err
	})
	return claims, err
}

// retry asks again where that may help, so that one lost reply in a hundred thousand does not
// end a list.
func retry(ctx context.Context, ask func(context.Context) error) (err error) {
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	for pause := 50 * time.Millisecond; pause < 500*time.Millisecond; pause *= 2 {
		err = ask(ctx)
		if err == nil || IsUsage(err) || driver.ClassOf(err) == driver.Fatal {
			return err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return err
		}
	}
	return err
}

// IsUsage reports whether the caller asked for something that the backend can never do.
func IsUsage(err error) bool {
	for _, kind := range []error{dlock.ErrInvalidConfig, dlock.ErrInvalidKey, dlock.ErrInvalidTTL, dlock.ErrUnsupported} {
		if errors.Is(err, kind) {
			return true
		}
	}
	return false
}
