package peer

import (
	"context"
	"errors"

	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// locks is a Client of ours and the connection below it.
type locks struct {
	client *dlock.Client
	close  func() error
	opts   []dlock.LockOption
}

func openOurs(env *Env, cfg dlock.Config, backend driver.Opener, closing func() error, opts ...dlock.LockOption) (Client, error) {
	cfg.DefaultTTL = env.TTL // 0 is the default
	c, err := dlock.New(&cfg, dlock.WithBackend(backend))
	if err != nil {
		return nil, errors.Join(err, closing())
	}
	return &locks{c, closing, opts}, nil
}

func (l *locks) Lock(ctx context.Context, key string) (Lock, error) {
	g, err := l.client.Acquire(ctx, key, l.opts...)
	if err != nil {
		return nil, err // not a nil *Guard inside of an interface
	}
	return g, nil
}

func (l *locks) Close() error { return errors.Join(l.client.Close(), l.close()) }
