package peer

import (
	"context"

	"github.com/redis/go-redis/v9"
)

// ping is two round trips to Redis that do nothing.
type ping struct{}

func (ping) Info() Info {
	return Info{
		Name: "ping", Title: "floor: two PINGs", Backend: "redis", Version: version(goRedis),
		Setup: "PING for each half of a pair; no mutual exclusion", Changed: poolChanged, Floor: true,
	}
}

func (ping) Open(_ context.Context, env *Env) (Client, error) {
	return pingClient{dialGoRedis(env.Redis)}, nil
}

type pingClient struct{ client *redis.Client }

func (c pingClient) Lock(ctx context.Context, _ string) (Lock, error) {
	return c, c.client.Ping(ctx).Err()
}

func (c pingClient) Unlock(ctx context.Context) error { return c.client.Ping(ctx).Err() }

func (c pingClient) Close() error { return c.client.Close() }
