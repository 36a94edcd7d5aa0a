package redislock

import (
	"fmt"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/internal/redisnode"
)

// Errors that a server can return for a lock command, in addition to the errors that all backends
// share: dlock.ErrUnavailable, dlock.ErrDenied and dlock.ErrNotReady. Test with errors.Is.
var (
	// ErrOutOfMemory: the server has reached maxmemory. Releases and renewals still work; new
	// claims are not stored. It is a dlock.ErrNotReady.
	ErrOutOfMemory = redisnode.ErrOutOfMemory
	// ErrNotALock: the key holds data of another kind, which is left unchanged.
	ErrNotALock = redisnode.ErrNotALock
	// ErrTooFewReplicas: fewer replicas than MinReplicas have confirmed. It is a
	// dlock.ErrNotReady.
	ErrTooFewReplicas = fmt.Errorf("%w: too few replicas have confirmed", driver.ErrNotReady)
	// ErrQueueFull: the queue of the key has reached its limit. Nothing was
	// stored. It is a dlock.ErrNotReady.
	ErrQueueFull = fmt.Errorf("%w: the queue of the lock is full", driver.ErrNotReady)
	// ErrUnexpectedReply: the answer does not match the request. It is a dlock.ErrNotReady.
	ErrUnexpectedReply = redisnode.ErrUnexpectedReply
)
