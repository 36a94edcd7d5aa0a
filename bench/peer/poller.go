package peer

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"
)

// poller is what many programs have at home: SET NX, and again after 10 ms.
type poller struct{}

const pollEvery = 10 * time.Millisecond

func (poller) Info() Info {
	return Info{
		Name: "poller", Title: "plain poller, 10 ms", Backend: "redis", Version: version(goRedis),
		Setup: "SET NX PX every 10 ms until it is ours, compare-and-delete by script; TTL 10 s", Changed: poolChanged, Waits: true,
	}
}

func (poller) Open(_ context.Context, env *Env) (Client, error) {
	return &pollerClient{dialGoRedis(env.Redis), env.ttl(10 * time.Second)}, nil
}

type pollerClient struct {
	client *redis.Client
	ttl    time.Duration
}

func (c *pollerClient) Lock(ctx context.Context, key string) (Lock, error) {
	for {
		ok, err := setNX(ctx, c.client, key, c.ttl)
		if err != nil {
			return nil, err
		}
		if ok {
			return rawLock{c.client, key}, nil
		}
		if !pause(ctx, pollEvery) {
			return nil, ctx.Err()
		}
	}
}

func (c *pollerClient) Close() error { return c.client.Close() }
