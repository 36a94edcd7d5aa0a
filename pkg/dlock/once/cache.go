package once

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/internal/recipes"
	"github.com/ceyewan/genesis/pkg/xerrors"
)

// ErrNotStored: the value was computed, but could not be stored. See Cache.Get.
var ErrNotStored = xerrors.New("value_not_stored", "the value was not stored")

// A Store keeps the values of a Cache where all processes find them, for instance in Redis or a database. Its methods
// may be called concurrently.
type Store[V any] interface {
	// Get returns the value of a key. found is false if there is none.
	Get(ctx context.Context, key string) (value V, found bool, err error)
	// Set stores the value of a key. How long it is kept is up to the Store.
	Set(ctx context.Context, key string, value V) error
}

// CacheConfig configures a Cache. The zero value has the defaults.
type CacheConfig struct {
	// Wait is how long a call waits for another one, in this process or another, that computes the value. After that, one call of
	// each process computes it, and the others of this process wait for that one, for another Wait at most. Then
	// each computes the value itself. So Wait should be longer than a computation takes. The default is 30 s.
	Wait time.Duration
	// Lease is how long the others wait for a process that died while it computed. The default is the
	// Config.DefaultTTL of the Client.
	Lease time.Duration
}

// A Cache computes values that are missing in a Store: one caller of all processes computes a value, and the others
// wait until it is stored. Its methods may be called from any goroutine and in any process.
type Cache[V any] struct {
	locks *dlock.Client
	store Store[V]
	cfg   CacheConfig

	mu    sync.Mutex
	calls map[string]*call[V] // by key: the one call of this process that computes, or waits for another process
	lates map[string]*call[V] // by key: the one that computes because its wait is over
}

// A call is one that the other calls of its process wait for.
type call[V any] struct {
	done   chan struct{}
	result result[V] // before done
	shared bool      // the result is also for those that wait
}

// A result is what a lookup has found or computed.
type result[V any] struct {
	value V
	found bool // value is the value of the key: it was found or computed, though perhaps not stored
	err   error
}

const (
	lockSuffix = ":compute"
	dfltWait   = 30 * time.Second
)

// NewCache returns a Cache. It does no I/O. For a key, it uses the lock key+":compute" of the Client.
func NewCache[V any](locks *dlock.Client, store Store[V], cfg CacheConfig) (*Cache[V], error) {
	switch {
	case locks == nil:
		return nil, fmt.Errorf("%w: once: the Client is nil", dlock.ErrInvalidConfig)
	case store == nil:
		return nil, fmt.Errorf("%w: once: the Store is nil", dlock.ErrInvalidConfig)
	case cfg.Wait < 0:
		return nil, fmt.Errorf("%w: once: CacheConfig.Wait %v is negative", dlock.ErrInvalidConfig, cfg.Wait)
	case cfg.Lease < 0 || cfg.Lease > maxLease:
		return nil, fmt.Errorf("%w: once: CacheConfig.Lease %v is not between 0 and %v", dlock.ErrInvalidTTL, cfg.Lease, maxLease)
	}
	if cfg.Wait == 0 {
		cfg.Wait = dfltWait
	}
	return &Cache[V]{locks: locks, store: store, cfg: cfg, calls: map[string]*call[V]{}, lates: map[string]*call[V]{}}, nil
}

// Get returns the value of key from the Store. If there is none, it computes and stores it, unless another caller already
// does: then it waits for the result, for CacheConfig.Wait at most. After that it no longer waits for other processes, and for
// another call of its own process only that long again.
//
// Calls of one process may return the same value: do not modify what it points to. An error of compute is returned to its caller only,
// and the next one that waits computes; but after CacheConfig.Wait, the calls that waited for this one get the same error. The context of compute is a child of
// ctx. If the lock is lost meanwhile, compute goes on, but its value is returned without being stored, because another
// process may have stored a later one. If Set fails, Get returns the value together with an error that wraps ErrNotStored, also
// to the calls of this process that waited for it. Errors of the Store are returned as they are. A Get inside compute for the same key is dlock.ErrLockAlreadyHeld.
//
// The lock saves work, and nothing depends on it. So while its backend does not answer (dlock.ErrUnavailable, dlock.ErrNotReady,
// dlock.ErrUnknownOutcome), at the start or during the wait, one call of each process computes without it. Other errors of the Client, such as
// dlock.ErrClosed and dlock.ErrDenied, are returned.
func (c *Cache[V]) Get(ctx context.Context, key string, compute func(context.Context) (V, error)) (value V, err error) {
	switch {
	case ctx == nil || compute == nil:
		return value, fmt.Errorf("%w: once: the context or the function is nil", dlock.ErrInvalidConfig)
	case key == "" || len(key)+len(lockSuffix) > maxKey:
		return value, fmt.Errorf("%w: once: the key has %d bytes, not 1 to %d", dlock.ErrInvalidKey, len(key), maxKey-len(lockSuffix))
	case ctx.Value(computing{c.locks, key}) != nil:
		return value, fmt.Errorf("%w: once: %q is being computed by the caller", dlock.ErrLockAlreadyHeld, key)
	}
	value, found, err := c.store.Get(ctx, key)
	if found || err != nil {
		return value, err
	}
	l := &lookup[V]{Cache: c, key: key, compute: compute, deadline: time.Now().Add(c.cfg.Wait)}
	return l.run(ctx)
}

// computing in a context says for which key a value is being computed. Caches on one Client share the lock of a key.
type computing struct {
	locks *dlock.Client
	key   string
}

// A lookup is one Get that did not find a value.
type lookup[V any] struct {
	*Cache[V]
	key      string
	compute  func(context.Context) (V, error)
	deadline time.Time // of the wait
}

// run lets one call of this process after the other ask for the lock, until one has a value.
func (l *lookup[V]) run(ctx context.Context) (value V, err error) {
	timer := time.NewTimer(time.Until(l.deadline))
	defer timer.Stop()
	for {
		other, own := l.begin(l.calls)
		if own != nil {
			r := l.lead(ctx, own)
			return r.value, r.err
		}
		select {
		case <-other.done:
		case <-timer.C:
			r := l.late(ctx)
			return r.value, r.err
		case <-ctx.Done():
			return value, l.ended(ctx)
		}
		if other.shared {
			return other.result.value, other.result.err
		}
	}
}

func (l *lookup[V]) ended(ctx context.Context) error {
	return fmt.Errorf("once: %q: %w", l.key, context.Cause(ctx))
}

// maxPoll is how long a call that waits for a late one does not look into the Store, at most.
const maxPoll = time.Second

// late computes the value because the wait is over, or the lock not available. One call of this process does, and the others get its result. They wait for
// another CacheConfig.Wait at most, and look into the Store meanwhile: the process that they have waited for may end first.
func (l *lookup[V]) late(ctx context.Context) result[V] {
	timer := time.NewTimer(l.cfg.Wait)
	defer timer.Stop()
	poll := time.NewTicker(max(min(l.cfg.Wait/10, maxPoll), time.Millisecond))
	defer poll.Stop()
	for {
		other, own := l.begin(l.lates)
		if own != nil {
			return l.leadLate(ctx, own)
		}
		for ended := false; !ended; {
			select {
			case <-other.done:
				if other.shared {
					return other.result
				}
				ended = true
			case <-poll.C:
				if r := l.look(ctx); r.found || r.err != nil {
					return r
				}
			case <-timer.C:
				return l.lookOrCompute(ctx, nil)
			case <-ctx.Done():
				return result[V]{err: l.ended(ctx)}
			}
		}
	}
}

// begin returns the call that this one must wait for, or else its own.
func (l *lookup[V]) begin(calls map[string]*call[V]) (other, own *call[V]) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if other = calls[l.key]; other != nil {
		return other, nil
	}
	own = &call[V]{done: make(chan struct{})}
	calls[l.key] = own
	return nil, own
}

func (l *lookup[V]) end(calls map[string]*call[V], own *call[V]) {
	l.mu.Lock()
	delete(calls, l.key)
	l.mu.Unlock()
	close(own.done)
}

// lead finds or computes the value for all calls of this process. If that fails, the next of them tries.
func (l *lookup[V]) lead(ctx context.Context, own *call[V]) result[V] {
	defer l.end(l.calls, own) // also if compute panics
	own.result = l.findOrCompute(ctx)
	own.shared = own.result.found && !own.canceled(ctx)
	return own.result
}

// leadLate is lead for the calls whose wait is over. They do not try one after the other, unless only this one was canceled.
func (l *lookup[V]) leadLate(ctx context.Context, own *call[V]) result[V] {
	defer l.end(l.lates, own)
	own.result = l.lookOrCompute(ctx, nil)
	own.shared = !own.canceled(ctx)
	return own.result
}

// canceled reports whether the result may be that of a canceled context.
func (c *call[V]) canceled(ctx context.Context) bool { return c.result.err != nil && ctx.Err() != nil }

// findOrCompute waits for the process that computes the value. If there is none, or it has failed, it computes it.
func (l *lookup[V]) findOrCompute(ctx context.Context) result[V] {
	guard, err := l.acquire(ctx, dlock.WithWait(0))
	if errors.Is(err, dlock.ErrLockHeldByOther) {
		r := l.await(ctx)
		if r.found {
			return r
		}
		err = r.err
		if err == nil {
			guard, err = l.acquire(ctx, l.untilDeadline())
		}
	}
	switch {
	case errors.Is(err, dlock.ErrLockHeldByOther), err != nil && ctx.Err() == nil && recipes.IsTemporary(err):
		return l.late(ctx)
	case err != nil:
		return result[V]{err: err}
	}
	defer func() { _ = guard.Unlock(ctx) }() // the result does not depend on it
	return l.lookOrCompute(ctx, guard)       // a holder before this one may have stored a value
}

// await waits until the holder of the lock has ended, and looks for its value. It asks for a shared lock, which all that
// wait get at the same time: otherwise they would return one after the other.
func (l *lookup[V]) await(ctx context.Context) result[V] {
	guard, err := l.acquire(ctx, dlock.WithShared(), l.untilDeadline())
	switch {
	case errors.Is(err, dlock.ErrUnsupported): // on Redlock they do
		return result[V]{}
	case err != nil:
		return result[V]{err: err}
	}
	_ = guard.Unlock(ctx)
	return l.look(ctx)
}

func (l *lookup[V]) acquire(ctx context.Context, opts ...dlock.LockOption) (*dlock.Guard, error) {
	opts = append(opts, dlock.WithAsyncUnlock())
	if l.cfg.Lease > 0 {
		opts = append(opts, dlock.WithTTL(l.cfg.Lease))
	}
	return l.locks.Acquire(ctx, l.key+lockSuffix, opts...)
}

func (l *lookup[V]) untilDeadline() dlock.LockOption {
	return dlock.WithWait(max(time.Until(l.deadline), time.Millisecond))
}

func (l *lookup[V]) look(ctx context.Context) (r result[V]) {
	r.value, r.found, r.err = l.store.Get(ctx, l.key)
	return r
}

// lookOrCompute computes a value that is missing, and stores it unless the lock was lost. guard is nil in a late call.
func (l *lookup[V]) lookOrCompute(ctx context.Context, guard *dlock.Guard) result[V] {
	r := l.look(ctx)
	if r.found || r.err != nil {
		return r
	}
	r.value, r.err = l.compute(context.WithValue(ctx, computing{l.locks, l.key}, true))
	if r.err != nil || (guard != nil && guard.Err() != nil) {
		return r
	}
	r.found = true
	if err := l.store.Set(ctx, l.key, r.value); err != nil {
		r.err = fmt.Errorf("%w: once: %q: %w", ErrNotStored, l.key, err)
	}
	return r
}
