package peer

import (
	"context"

	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/redislock"
)

// ourRedis is a Client as it comes: strict order of arrival, and a fencing token.
type ourRedis struct{}

func (ourRedis) Info() Info {
	return Info{
		Name: "dlock-redis", Title: "Genesis DLock on Redis", Backend: "redis", Version: version(goRedis),
		Setup: "dlock.Config{}: strict FIFO, fenced, TTL 10 s with renewal; ContextTimeoutEnabled, as its documentation says", Changed: poolChanged, Ours: true, Waits: true, Renews: true,
	}
}

func (ourRedis) Open(_ context.Context, env *Env) (Client, error) {
	c := dialPrompt(env.Redis)
	return openOurs(env, dlock.Config{}, redislock.New(c), c.Close)
}

// ourBatch lets goroutines of one Client pass a lock on among themselves.
type ourBatch struct{}

const localBatch = 64

func (ourBatch) Info() Info {
	return Info{
		Name: "dlock-redis-batch", Title: "Genesis DLock on Redis, LocalBatch 64", Backend: "redis", Version: version(goRedis),
		Setup: "dlock.Config{LocalBatch: 64}: FIFO among processes by turns of at most 5 ms, fenced; ContextTimeoutEnabled", Changed: poolChanged,
		Ours: true, Waits: true, Renews: true,
	}
}

func (ourBatch) Open(_ context.Context, env *Env) (Client, error) {
	c := dialPrompt(env.Redis)
	return openOurs(env, dlock.Config{LocalBatch: localBatch}, redislock.New(c), c.Close)
}

// ourAsync does not wait for the answer to Unlock.
type ourAsync struct{}

func (ourAsync) Info() Info {
	return Info{
		Name: "dlock-redis-async", Title: "Genesis DLock on Redis, WithAsyncUnlock", Backend: "redis", Version: version(goRedis),
		Setup: "as dlock-redis, and with WithAsyncUnlock", Changed: poolChanged, Ours: true, Waits: true, Renews: true,
	}
}

func (ourAsync) Open(_ context.Context, env *Env) (Client, error) {
	c := dialPrompt(env.Redis)
	return openOurs(env, dlock.Config{}, redislock.New(c), c.Close, dlock.WithAsyncUnlock())
}
