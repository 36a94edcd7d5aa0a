package redislock

import (
	"errors"

	"github.com/ceyewan/genesis/pkg/dlock/internal/redisnode"
)

// What a server can answer to a lock command. Test with errors.Is.
var (
	// ErrOutOfMemory: the server is at maxmemory. Releases and renewals still
	// work; nothing new is stored.
	ErrOutOfMemory = redisnode.ErrOutOfMemory
	// ErrNotReady: the server cannot write now (READONLY, LOADING, MASTERDOWN,
	// CLUSTERDOWN, TRYAGAIN, BUSY, NOREPLICAS, a slot on the move).
	ErrNotReady = redisnode.ErrNotReady
	// ErrDenied: the server does not let us in (NOAUTH, WRONGPASS, NOPERM).
	ErrDenied = redisnode.ErrDenied
	// ErrNotALock: the key holds data of another kind, which is left alone.
	ErrNotALock = redisnode.ErrNotALock
	// ErrReplicas: fewer replicas than MinReplicas have confirmed.
	ErrReplicas = errors.New("too few replicas have confirmed")
	// ErrQueueFull: as many claims as a queue may have wait for the key already.
	// Nothing was stored.
	ErrQueueFull = errors.New("the queue of the lock is full")
	// ErrReply: the answer was not to what we had asked.
	ErrReply = redisnode.ErrReply
)
