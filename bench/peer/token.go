package peer

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// token is the ceiling of fair hand-over on Redis: the server itself gives an element
// of a list to whoever has waited longest. A holder that dies takes it along, so it is
// no lock. It is not asked whether the key is free, which saves a trip.
type token struct{}

func (token) Info() Info {
	return Info{
		Name: "blpop-token", Title: "floor: bare BLPOP token", Backend: "redis", Version: version(goRedis),
		Setup: "BLPOP takes the token, LPUSH gives it back; strict FIFO, no lease, no owner", Changed: poolChanged, Floor: true, Waits: true,
	}
}

func (token) Open(_ context.Context, env *Env) (Client, error) {
	return &tokenClient{client: dialGoRedis(env.Redis), known: map[string]bool{}}, nil
}

type tokenClient struct {
	client *redis.Client

	mu    sync.Mutex
	known map[string]bool // keys whose token was made
}

// Lock blocks on the server for a second at a time: a BLPOP whose context ends before
// it would take the token and drop it.
func (c *tokenClient) Lock(ctx context.Context, key string) (Lock, error) {
	if err := c.makeToken(ctx, key); err != nil {
		return nil, err
	}
	for {
		err := c.client.BLPop(context.WithoutCancel(ctx), time.Second, key).Err()
		switch {
		case err == nil:
			return tokenLock{c.client, key}, nil
		case !errors.Is(err, redis.Nil):
			return nil, err
		case ctx.Err() != nil:
			return nil, ctx.Err()
		}
	}
}

// makeToken makes the token of a key that was never used.
func (c *tokenClient) makeToken(ctx context.Context, key string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.known[key] {
		return nil
	}
	first, err := c.client.SetNX(ctx, key+":made", 1, time.Hour).Result()
	if err == nil && first {
		err = c.client.LPush(ctx, key, 1).Err()
	}
	c.known[key] = err == nil
	return err
}

func (c *tokenClient) Close() error { return c.client.Close() }

type tokenLock struct {
	client *redis.Client
	key    string
}

func (l tokenLock) Unlock(ctx context.Context) error { return l.client.LPush(ctx, l.key, 1).Err() }
