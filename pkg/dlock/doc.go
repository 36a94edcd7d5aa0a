// Package dlock is a distributed lock: one small interface over Redis, etcd, a
// quorum of Redis servers, files of one host, or memory.
//
// # Locking
//
// A Client on a backend gives locks in two forms. Keyed locks belong to the
// process:
//
//	if err := client.Lock(ctx, "order:123"); err != nil {
//		return err
//	}
//	defer client.Unlock(ctx, "order:123")
//
// Guards belong to whoever has them, and tell when they are lost:
//
//	guard, err := client.Acquire(ctx, "order:123")
//	if err != nil {
//		return err
//	}
//	defer guard.Unlock(ctx)
//	return work(guard.Context(), guard.Token())
//
// Client.Do is the shortest form of the second.
//
// # What a lock is
//
// It is a lease: the backend lets one client at a time believe that it holds the
// name, for a limited time. While the process lives, the lease is renewed. The
// Guard's context ends before the backend could give the lock to another. But no
// lock can stop a process that was paused for longer than its lease from doing
// one more write when it wakes. Where that matters, hand Guard.Token to whatever
// is written to, and let it refuse a smaller number than it has seen.
//
// # Contexts
//
// The context of Lock and Acquire bounds the wait, not the hold. The context of
// Do bounds both. Unlock with a context that has ended still releases.
//
// # Errors
//
// Every error wraps one of the sentinels of this package, a context's error, or
// the backend's own. ErrUnknownOutcome means that the backend did not answer: it
// is neither success nor "busy", and clean-up goes on in the background.
// ErrUnavailable means that it could not be reached, and that nothing is stored.
// docs/errors.md lists which fault leads to which error.
package dlock
