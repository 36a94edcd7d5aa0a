package peer

import (
	"context"
	"errors"
	"time"

	"github.com/bsm/redislock"
)

type redislockPeer struct{}

func (redislockPeer) Info() Info {
	return Info{
		Name: "redislock", Title: "bsm/redislock", Backend: "redis", Version: version("github.com/bsm/redislock"),
		Setup:   "redislock.New(client).Obtain(ctx, key, 10 s, …)",
		Changed: poolChanged + "; RetryStrategy LinearBackoff(100 ms), from its examples but without a limit: by default it does not wait at all",
		Waits:   true,
	}
}

func (redislockPeer) Open(_ context.Context, env *Env) (Client, error) {
	c := dialGoRedis(env.Redis)
	return &redislockClient{redislock.New(c), env.ttl(10 * time.Second), c.Close}, nil
}

type redislockClient struct {
	client *redislock.Client
	ttl    time.Duration
	close  func() error
}

// Lock gives it a deadline, since without one it waits no longer than its TTL.
func (c *redislockClient) Lock(ctx context.Context, key string) (Lock, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Hour)
	defer cancel()
	l, err := c.client.Obtain(ctx, key, c.ttl, &redislock.Options{RetryStrategy: redislock.LinearBackoff(100 * time.Millisecond)})
	if errors.Is(err, redislock.ErrNotObtained) {
		return nil, errors.Join(ErrGaveUp, err)
	}
	if err != nil {
		return nil, err
	}
	return redislockLock{l}, nil
}

func (c *redislockClient) Close() error { return c.close() }

type redislockLock struct{ lock *redislock.Lock }

func (l redislockLock) Unlock(ctx context.Context) error { return l.lock.Release(ctx) }
