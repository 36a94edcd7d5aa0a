package connector

import (
	"github.com/ceyewan/genesis/pkg/clog"
	"github.com/ceyewan/genesis/pkg/dlock/redislock"
	"github.com/ceyewan/genesis/pkg/dlock/redlock"
)

// An Option gives a connector something that is not configuration.
type Option func(*options)

// WithLogger sets the log of the connector and of the etcd client; the client's lines have debug
// level. Without it there is no log. (go-redis logs for all its clients together, see
// redis.SetLogger.)
func WithLogger(l clog.Logger) Option {
	return func(o *options) { o.log = l }
}

// WithRedisLockOptions sets how locks are stored on this connector, for instance with
// redislock.WithMinReplicas. NewEtcd and NewRedlock refuse it.
func WithRedisLockOptions(opts ...redislock.Option) Option {
	return func(o *options) { o.redis = append(o.redis, opts...) }
}

// WithRedlockOptions sets how locks are stored on this connector, for instance with
// redlock.WithDrift. Only NewRedlock accepts it.
func WithRedlockOptions(opts ...redlock.Option) Option {
	return func(o *options) { o.redlock = append(o.redlock, opts...) }
}

type options struct {
	log     clog.Logger
	redis   []redislock.Option
	redlock []redlock.Option
}

func collect(opts []Option) (*options, error) {
	o := &options{}
	for i, opt := range opts {
		if opt == nil {
			return nil, invalid("option", "%d is nil", i)
		}
		opt(o)
	}
	for i, opt := range o.redis {
		if opt == nil {
			return nil, invalid("WithRedisLockOptions", "option %d is nil", i)
		}
	}
	for i, opt := range o.redlock {
		if opt == nil {
			return nil, invalid("WithRedlockOptions", "option %d is nil", i)
		}
	}
	return o, nil
}
