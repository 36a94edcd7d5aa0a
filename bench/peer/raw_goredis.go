package peer

import (
	"context"
	"errors"
	"time"

	"github.com/redis/go-redis/v9"
)

// rawGoRedis is the floor of a lock on one Redis: no queue, no fence, no renewal.
type rawGoRedis struct{}

func (rawGoRedis) Info() Info {
	return Info{
		Name: "raw-goredis", Title: "floor: raw SET NX PX + compare-delete, go-redis", Backend: "redis", Version: version(goRedis),
		Setup: "the two commands and nothing else; the second is a script", Changed: poolChanged, Floor: true,
	}
}

func (rawGoRedis) Open(_ context.Context, env *Env) (Client, error) {
	return &rawClient{dialGoRedis(env.Redis), env.ttl(10 * time.Second)}, nil
}

type rawClient struct {
	client *redis.Client
	ttl    time.Duration
}

func (c *rawClient) Lock(ctx context.Context, key string) (Lock, error) {
	ok, err := setNX(ctx, c.client, key, c.ttl)
	if err == nil && !ok {
		err = errBusy
	}
	if err != nil {
		return nil, err
	}
	return rawLock{c.client, key}, nil
}

func (c *rawClient) Close() error { return c.client.Close() }

// errBusy: a floor that cannot wait was asked for a key that is taken.
var errBusy = errors.Join(ErrGaveUp, errors.New("the key is taken"))

// setNX takes a key if it is free. Redis has the plain SETNX only without an expiry.
func setNX(ctx context.Context, c *redis.Client, key string, ttl time.Duration) (bool, error) {
	err := c.SetArgs(ctx, key, ownValue, redis.SetArgs{Mode: "NX", TTL: ttl}).Err()
	if errors.Is(err, redis.Nil) {
		return false, nil
	}
	return err == nil, err
}

type rawLock struct {
	client *redis.Client
	key    string
}

func (l rawLock) Unlock(ctx context.Context) error {
	n, err := compareDelete.Run(ctx, l.client, []string{l.key}, ownValue).Int()
	if err == nil && n == 0 {
		err = errLost
	}
	return err
}

var errLost = errors.New("the lock was not ours any more")
