package redislock

import (
	"fmt"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/internal/redisnode"
)

// What a server can answer to a lock command, beyond the errors that all backends have:
// dlock.ErrUnavailable, dlock.ErrDenied and dlock.ErrNotReady. Test with errors.Is.
var (
	// ErrOutOfMemory: the server is at maxmemory. Releases and renewals still
	// work; nothing new is stored. It is a dlock.ErrNotReady.
	ErrOutOfMemory = redisnode.ErrOutOfMemory
	// ErrNotALock: the key holds data of another kind, which is left alone.
	ErrNotALock = redisnode.ErrNotALock
	// ErrReplicas: fewer replicas than MinReplicas have confirmed. It is a
	// dlock.ErrNotReady.
	ErrReplicas = fmt.Errorf("%w: too few replicas have confirmed", driver.ErrNotReady)
	// ErrQueueFull: as many claims as a queue may have wait for the key already.
	// Nothing was stored. It is a dlock.ErrNotReady.
	ErrQueueFull = fmt.Errorf("%w: the queue of the lock is full", driver.ErrNotReady)
	// ErrReply: the answer was not to what we had asked.
	ErrReply = redisnode.ErrReply
)
