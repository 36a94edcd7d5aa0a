package peer

import (
	"context"
	"errors"

	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
)

type redsyncPeer struct{}

func (redsyncPeer) Info() Info {
	return Info{
		Name: "redsync", Title: "redsync", Backend: "redis", Version: version("github.com/go-redsync/redsync/v4"),
		Setup:   "redsync.New(goredis.NewPool(client)), NewMutex(name): 32 tries with pauses of 50 to 250 ms, expiry 8 s",
		Changed: poolChanged, Waits: true,
	}
}

func (redsyncPeer) Open(_ context.Context, env *Env) (Client, error) {
	c := dialGoRedis(env.Redis)
	var opts []redsync.Option
	if env.TTL > 0 {
		opts = append(opts, redsync.WithExpiry(env.TTL))
	}
	return &redsyncClient{redsync.New(goredis.NewPool(c)), opts, c.Close}, nil
}

type redsyncClient struct {
	sync  *redsync.Redsync
	opts  []redsync.Option
	close func() error
}

func (c *redsyncClient) Lock(ctx context.Context, key string) (Lock, error) {
	m := c.sync.NewMutex(key, c.opts...)
	err := m.LockContext(ctx)
	var taken *redsync.ErrTaken
	if errors.As(err, &taken) || errors.Is(err, redsync.ErrFailed) {
		return nil, errors.Join(ErrGaveUp, err)
	}
	if err != nil {
		return nil, err
	}
	return redsyncLock{m}, nil
}

func (c *redsyncClient) Close() error { return c.close() }

type redsyncLock struct{ mutex *redsync.Mutex }

func (l redsyncLock) Unlock(ctx context.Context) error {
	ok, err := l.mutex.UnlockContext(ctx)
	if err == nil && !ok {
		err = errors.New("redsync: the lock was not ours any more")
	}
	return err
}
