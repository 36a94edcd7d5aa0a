package peer

import (
	"context"
	"time"

	"github.com/redis/rueidis"
)

// rawRueidis is rawGoRedis with a client that sends the commands of all goroutines
// through shared pipelines.
type rawRueidis struct{}

func (rawRueidis) Info() Info {
	return Info{
		Name: "raw-rueidis", Title: "floor: raw SET NX PX + compare-delete, rueidis", Backend: "redis", Version: version(rueidisModule),
		Setup: "the two commands and nothing else, by a client that pipelines by itself", Floor: true,
	}
}

func (rawRueidis) Open(_ context.Context, env *Env) (Client, error) {
	c, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{env.Redis}})
	if err != nil {
		return nil, err
	}
	return &rueidisClient{c, env.ttl(10 * time.Second)}, nil
}

type rueidisClient struct {
	client rueidis.Client
	ttl    time.Duration
}

var rueidisDelete = rueidis.NewLuaScript(`if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0`)

func (c *rueidisClient) Lock(ctx context.Context, key string) (Lock, error) {
	err := c.client.Do(ctx, c.client.B().Set().Key(key).Value(ownValue).Nx().Px(c.ttl).Build()).Error()
	if rueidis.IsRedisNil(err) {
		return nil, errBusy
	}
	if err != nil {
		return nil, err
	}
	return rueidisLock{c.client, key}, nil
}

func (c *rueidisClient) Close() error {
	c.client.Close()
	return nil
}

type rueidisLock struct {
	client rueidis.Client
	key    string
}

func (l rueidisLock) Unlock(ctx context.Context) error {
	n, err := rueidisDelete.Exec(ctx, l.client, []string{l.key}, []string{ownValue}).AsInt64()
	if err == nil && n == 0 {
		err = errLost
	}
	return err
}
