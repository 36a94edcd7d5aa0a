package connector

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"

	"github.com/ceyewan/genesis/pkg/clog"
	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/redlock"
)

// A Redlock owns clients of several independent Redis servers, each like the client of a Redis. Its
// methods may be called from any goroutine. Create it with NewRedlock; the methods of a zero Redlock
// return ErrConfigNil.
type Redlock struct {
	link  *link
	nodes []*Redis
	locks []redlock.Option
}

var _ dlock.RedlockConnector = (*Redlock)(nil)

// NewRedlock checks cfg and reads the files that it names. It touches no network, and does not keep
// cfg.
func NewRedlock(cfg *RedlockConfig, opts ...Option) (*Redlock, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	o, err := collect(opts)
	if err != nil {
		return nil, err
	}
	if len(o.redis) > 0 {
		return nil, invalid("WithRedisLockOptions", "is not for redlock")
	}
	r := &Redlock{link: newLink("redlock", cfg.Addrs, or(cfg.ConnectTimeout, defaultTimeout), o.log, cfg.Password), locks: o.redlock}
	for _, addr := range cfg.Addrs {
		node, err := NewRedis(cfg.node(addr), WithLogger(clog.Logger{}))
		if err != nil {
			return nil, err
		}
		r.nodes = append(r.nodes, node)
	}
	r.link.ask, r.link.shut = r.ping, r.shut
	return r, nil
}

// Connect checks whether a majority of the servers answers, and whether all that answer accept the
// credentials. It returns within ConnectTimeout and when ctx ends. Calling it is optional, and each
// call checks again.
func (r *Redlock) Connect(ctx context.Context) error { return r.link.connect(ctx) }

// HealthCheck is Connect for frequent checks.
func (r *Redlock) HealthCheck(ctx context.Context) error { return r.link.try(ctx, "health check") }

// Clients returns the clients for your own commands, in the order of the addresses. The connector
// still owns them: do not close them.
func (r *Redlock) Clients() []redis.UniversalClient {
	clients := make([]redis.UniversalClient, len(r.nodes))
	for i, n := range r.nodes {
		clients[i] = n.Client()
	}
	return clients
}

// RedlockLocks is for dlock.NewRedlock. Locks have their own clients, as with a Redis.
func (r *Redlock) RedlockLocks() driver.Opener {
	return redlock.New(r.LockClients(), r.locks...)
}

// LockClients returns the clients that only locks use, for hooks and statistics. The connector owns
// them as well: do not close them.
func (r *Redlock) LockClients() []redis.UniversalClient {
	clients := make([]redis.UniversalClient, len(r.nodes))
	for i, n := range r.nodes {
		clients[i] = n.LockClient()
	}
	return clients
}

// Close closes the clients. Calls in progress end with an error. A second Close does nothing.
func (r *Redlock) Close() error { return r.link.close() }

// String describes the connection without secrets.
func (r *Redlock) String() string { return r.link.describe() }

// GoString is String.
func (r *Redlock) GoString() string { return r.String() }

// ping calls all servers at once. Redlock tolerates a few servers that are down; a server that
// answers and refuses the credentials is a configuration error.
func (r *Redlock) ping(ctx context.Context) error {
	errs := make([]error, len(r.nodes))
	var wg sync.WaitGroup
	for i, n := range r.nodes {
		wg.Go(func() { errs[i] = n.ping(ctx) })
	}
	wg.Wait()
	var down []string
	var first error
	for i, err := range errs {
		switch kind := typed(err, netKind(err)); {
		case err == nil:
		case errors.Is(kind, ErrDenied), errors.Is(kind, ErrTLS), errors.Is(kind, ErrInvalidConfig):
			return fmt.Errorf("%s: %w", r.link.addrs[i], kind)
		default:
			down = append(down, r.link.addrs[i])
			first = errors.Join(first, kind)
		}
	}
	if len(down) > len(r.nodes)/2 {
		return fmt.Errorf("no majority, without %s: %w", strings.Join(down, ", "), first)
	}
	if len(down) > 0 {
		r.link.log.Warn("some servers do not answer", clog.String("servers", strings.Join(down, ","))) //nolint:contextcheck // a Logger takes none
	}
	return nil
}

func (r *Redlock) shut() error {
	errs := make([]error, len(r.nodes))
	for i, n := range r.nodes {
		errs[i] = n.Close()
	}
	return errors.Join(errs...)
}
