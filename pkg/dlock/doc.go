// Package dlock is a distributed lock: one small interface over Redis, etcd, a
// majority of Redis servers, files on one host, or memory.
//
// # Locking
//
// Do runs a function while it holds a lock. The context of the function ends when
// the lock is lost:
//
//	err := client.Do(ctx, "order:123", func(ctx context.Context) error {
//		return ship(ctx)
//	})
//
// Acquire returns a Guard, for a lock that is held longer than one function, or
// where the fencing token is needed:
//
//	func ship(ctx context.Context, client *dlock.Client) (err error) {
//		guard, err := client.Acquire(ctx, "order:123")
//		if err != nil {
//			return err
//		}
//		defer dlock.UnlockInto(&err, guard) // err says if the lock was lost
//		return write(guard.Context(), guard.Token())
//	}
//
// Lock, TryLock and Unlock need only the key; the lock belongs to the whole process.
// While a key is locked in this way, another Lock of it by the same Client returns
// ErrLockAlreadyHeld at once; use Acquire or Do between goroutines.
//
//	if err := client.Lock(ctx, "order:123"); err != nil {
//		return err
//	}
//	err := ship(ctx)
//	return errors.Join(err, client.Unlock(ctx, "order:123"))
//
// # What a lock is
//
// A lock is a lease: for a limited time, the backend lets one client assume that it
// owns the key. The Client renews the lease while the process lives. The Guard's
// context ends before the backend could give the lock to another client. But no lock
// can prevent one more write by a process that was paused for longer than its lease.
// Where that matters, pass Guard.Token to the system that you write to, and let that
// system refuse a smaller number than it has seen.
//
// # Contexts
//
// The context of Lock and Acquire limits the wait, not the hold. The context of
// Do limits the wait and ends the context of its function; the lock is held until the function
// returns. Unlock with a context that has ended still releases the lock.
//
// # Errors
//
// Every error wraps one of the sentinels of this package, a context's error, or
// the backend's own. ErrUnknownOutcome means that the backend did not answer: it
// is neither success nor "busy", and cleanup continues in the background.
// ErrUnavailable means that the backend could not be reached, and that nothing is
// stored. docs/errors.md lists which fault leads to which error.
package dlock
