package connector

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/redislock"
)

// A Redis owns a client of one server, of a master monitored by sentinels, or of a cluster. Its
// methods may be called from any goroutine. Create it with NewRedis; the methods of a zero Redis
// return ErrConfigNil.
type Redis struct {
	link       *link
	dialer     *dialer
	client     lazyClient
	lockClient lazyClient
	locks      []redislock.Option
}

// A lazyClient is a client that is created on its first use, and closed only if it was created.
type lazyClient struct {
	options *redis.UniversalOptions
	hook    redactor

	mu     sync.Mutex
	client redis.UniversalClient
	closed bool
}

func (l *lazyClient) get() redis.UniversalClient {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.options == nil { // of a connector that no constructor made
		return nil
	}
	if l.client == nil {
		l.client = redis.NewUniversalClient(l.options)
		l.hook.addTo(l.client)
		if l.closed {
			_ = l.client.Close()
		}
	}
	return l.client
}

// made returns the client if it was created, or nil.
func (l *lazyClient) made() redis.UniversalClient {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.client
}

func (l *lazyClient) close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	if l.client == nil {
		return nil
	}
	return l.client.Close()
}

var _ dlock.RedisConnector = (*Redis)(nil)

// NewRedis checks cfg and reads the files that it names. It touches no network, and does not keep
// cfg.
func NewRedis(cfg *RedisConfig, opts ...Option) (*Redis, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	o, err := collect(opts)
	if err != nil {
		return nil, err
	}
	if len(o.redlock) > 0 {
		return nil, invalid("WithRedlockOptions", "is not for one server")
	}
	full := cfg.withDefaults()
	l := newLink("redis", full.Addrs, full.ConnectTimeout, o.log, full.Password, full.SentinelPassword)
	r := &Redis{link: l, locks: o.redis, dialer: &dialer{lifetime: l.lifetime, timeout: full.DialTimeout}}
	if full.TLS.on() {
		if r.dialer.tls, err = full.TLS.load(); err != nil {
			return nil, err
		}
	}
	universal := universalOptions(&full, r.dialer)
	r.client.options = universal
	r.lockClient.options = lockOptions(*universal)
	r.client.hook, r.lockClient.hook = redactor{link: l}, redactor{link: l, all: true}
	l.ask = r.ping
	l.shut = func() error { return errors.Join(r.client.close(), r.lockClient.close()) }
	return r, nil
}

// lockPoolSize is the smallest number of connections that locks may use for each server: six round
// trips in flight, renewals, and the calls of operators and Check, with room to spare. Redlock and
// WithMinReplicas need one for each call, so a larger PoolSize takes precedence.
const lockPoolSize = 16

// lockOptions returns the options of the client that only locks use.
func lockOptions(o redis.UniversalOptions) *redis.UniversalOptions {
	if o.PoolSize == 0 {
		o.PoolSize = 10 * runtime.GOMAXPROCS(0) // the default of go-redis
	}
	o.PoolSize = max(o.PoolSize, lockPoolSize)
	return &o
}

func universalOptions(cfg *RedisConfig, d *dialer) *redis.UniversalOptions {
	retries := cfg.MaxRetries
	if retries == 0 {
		retries = -1 // 0 would be three
	}
	return &redis.UniversalOptions{
		Addrs:                 cfg.Addrs,
		MasterName:            cfg.MasterName,
		IsClusterMode:         cfg.Cluster,
		Username:              cfg.Username,
		Password:              cfg.Password,
		SentinelUsername:      cfg.SentinelUsername,
		SentinelPassword:      cfg.SentinelPassword,
		DB:                    cfg.DB,
		PoolSize:              cfg.PoolSize,
		MinIdleConns:          cfg.MinIdleConns,
		MaxRetries:            retries,
		Dialer:                d.dial,
		TLSConfig:             d.tls, // for hooks that read it; the dialer already uses TLS
		DialTimeout:           cfg.DialTimeout,
		DialerRetries:         1,
		ReadTimeout:           cfg.ReadTimeout,
		WriteTimeout:          cfg.WriteTimeout,
		ContextTimeoutEnabled: true,
		// A user who may only lock may not run these commands.
		DisableIdentity:          true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	}
}

// Connect checks whether the server answers and accepts the credentials; on a cluster, it checks
// every master. It returns within ConnectTimeout and when ctx ends. Calling it is optional, and
// each call checks again.
func (r *Redis) Connect(ctx context.Context) error { return r.link.connect(ctx) }

// HealthCheck is Connect for frequent checks.
func (r *Redis) HealthCheck(ctx context.Context) error { return r.link.try(ctx, "health check") }

// Client returns the client for your own commands. The connector still owns it: do not close it.
func (r *Redis) Client() redis.UniversalClient { return r.client.get() }

// LockClient returns the client that only locks use, for hooks and statistics. The connector owns
// it as well: do not close it.
func (r *Redis) LockClient() redis.UniversalClient { return r.lockClient.get() }

// RedisLocks is for dlock.NewRedis. Locks have their own client, with the same options and a pool
// of at least 16 connections for each server. So they never wait behind your own commands: BLPOP,
// for instance, keeps its connection for a long time.
func (r *Redis) RedisLocks() driver.Opener { return redislock.New(r.lockClient.get(), r.locks...) }

// Close closes the clients. Calls in progress end with an error. A second Close does nothing.
func (r *Redis) Close() error { return r.link.close() }

// String describes the connection without secrets.
func (r *Redis) String() string { return r.link.describe() }

// GoString is String.
func (r *Redis) GoString() string { return r.String() }

// anyClient returns a client that is in use: a program that only locks needs no second connection
// to find out whether the server answers.
func (r *Redis) anyClient() redis.UniversalClient {
	if r.client.made() == nil && r.lockClient.made() != nil {
		return r.lockClient.get()
	}
	return r.client.get()
}

func (r *Redis) ping(ctx context.Context) (err error) {
	client := r.anyClient()
	if cluster, ok := client.(*redis.ClusterClient); ok {
		err = cluster.ForEachMaster(ctx, func(ctx context.Context, node *redis.Client) error {
			return node.Ping(ctx).Err()
		})
	} else {
		err = client.Ping(ctx).Err()
	}
	if r.dialer.tls != nil && errors.Is(netKind(err), ErrUnreachable) {
		if cause := r.dialer.explain(ctx, r.link.addrs); cause != nil {
			return fmt.Errorf("%w (%w)", cause, r.link.redact(err))
		}
	}
	return typed(r.link.redact(err), redisKind(err))
}

// redisKinds maps the first word of an error reply to its meaning.
var redisKinds = map[string]error{
	"NOAUTH": ErrDenied, "WRONGPASS": ErrDenied, "NOPERM": ErrDenied, "DENIED": ErrDenied,
	"LOADING": ErrNotReady, "MASTERDOWN": ErrNotReady, "CLUSTERDOWN": ErrNotReady, "BUSY": ErrNotReady,
	"MISCONF": ErrNotReady, "NOREPLICAS": ErrNotReady,
}

// redisMisfits are replies that say that the configuration is for another kind of server.
var redisMisfits = []string{"cluster support disabled", "DB index is out of range"}

func redisKind(err error) error {
	var reply redis.Error
	switch {
	case errors.Is(err, redis.Nil):
		return invalid("MasterName", "is not known to the sentinels")
	case errors.Is(err, redis.ErrPoolTimeout):
		return ErrTimeout
	case !errors.As(err, &reply):
		return nil
	}
	for _, text := range redisMisfits {
		if strings.Contains(reply.Error(), text) {
			return ErrInvalidConfig
		}
	}
	word, _, _ := strings.Cut(reply.Error(), " ")
	return redisKinds[word]
}
