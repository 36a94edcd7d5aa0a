// Package redlock stores locks on an odd number of independent Redis servers. The holder of a lock
// is the claim that is stored on a majority of them, so a minority may be down.
//
// On each server a lock is the same plain string as in package redislock, so every client that
// locks with SET NX PX on the same servers, such as redsync, excludes this package and is excluded
// by it. The claims of one Client queue in their process, and a release tells the first claim of the process
// that has waited longest to try. docs/backends/redlock.md says what this
// promises and under which conditions, and docs/adr/0010-redlock-fencing.md says why tokens
// increase.
package redlock

import (
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/internal/redisnode"
	"github.com/ceyewan/genesis/pkg/xerrors"
)

// An Option changes how locks are stored.
type Option func(*settings)

// WithDrift sets how much faster one clock may run than another, as a share of the TTL that is
// subtracted from the validity. The default is 0.01.
func WithDrift(share float64) Option { return func(s *settings) { s.drift = share } }

// WithNodeTimeout sets how long one server may take to answer. The default is 500 ms, and it is
// never more than a quarter of the TTL. Close may have to wait that long, and so may the cleanup
// after a server comes back.
func WithNodeTimeout(d time.Duration) Option { return func(s *settings) { s.nodeTimeout = d } }

type settings struct {
	drift       float64
	nodeTimeout time.Duration // 0: defaultNodeTimeout
	bad         error         // what Open returns
}

const (
	// defaultNodeTimeout is how long a call to one server may take by default, and maxNodeTimeout
	// is the longest that the user may set. Nothing else ends a call that the client has begun, so
	// Close waits for it.
	defaultNodeTimeout = 500 * time.Millisecond
	maxNodeTimeout     = 5 * time.Second
	// expiryRounding covers the rounding of expiries, as in the algorithm.
	expiryRounding = 2 * time.Millisecond
)

// patience is how long a server may take to answer about a claim. Two such calls win a lock, and
// leave half of the lease. A dead server delays no call as long as a majority answers, so a shorter
// time would only cause false alarms.
func (s *settings) patience(ttl time.Duration) time.Duration { return min(s.longest(), ttl/4) }

// longest is how long a server may take to answer any call.
func (s *settings) longest() time.Duration {
	if s.nodeTimeout > 0 {
		return s.nodeTimeout
	}
	return defaultNodeTimeout
}

// until returns when a lease that was requested at sent ends by the fastest clock.
func (s *settings) until(sent time.Time, ttl time.Duration) time.Time {
	return sent.Add(ttl - time.Duration(float64(ttl)*s.drift) - expiryRounding)
}

// New returns a backend that uses clients of independent servers: three or a greater odd number;
// five is a good choice. The clients stay open when locks are closed. Open returns
// ErrInvalidServers if the clients are invalid (for a nil client also driver.ErrConnectorNil), and
// xerrors.ErrInvalidConfig for an option that is out of range.
func New(clients []redis.UniversalClient, opts ...Option) driver.Opener {
	o := &opener{clients: append([]redis.UniversalClient(nil), clients...), settings: settings{drift: 0.01}}
	for i, opt := range opts {
		if opt == nil {
			o.settings.bad = fmt.Errorf("%w: redlock: option %d is nil", xerrors.ErrInvalidConfig, i)
			continue
		}
		opt(&o.settings)
	}
	return o
}

type opener struct {
	clients  []redis.UniversalClient
	settings settings
}

// Open does no I/O.
func (o *opener) Open(opts driver.Options) (driver.Driver, error) {
	if err := o.settings.validate(); err != nil {
		return nil, err
	}
	servers, err := fit(o.clients)
	if err != nil {
		return nil, err
	}
	d := &redDriver{
		EventQueue: driver.NewEventQueue(1024), settings: o.settings, prefix: opts.Prefix, log: opts.Logger,
		majority: len(servers)/2 + 1, claims: map[claimID]*claim{}, queues: map[string]*waitQueue{}, yields: map[string]time.Time{}, released: map[string]struct{}{},
	}
	d.ctx, d.cancel = context.WithCancel(context.Background())
	d.channel = channelPrefix + opts.Prefix + redisnode.Separator + rand.Text() // no name of a lock contains the separator
	d.workers.work = &d.work
	for i, c := range servers {
		n := &node{at: i, addr: c.Options().Addr, client: c, driver: d}
		if !c.Options().ContextTimeoutEnabled {
			n.client = c.WithTimeout(o.settings.longest()) // the same connections; only its own time-outs end a call
		}
		n.subscription.node = n
		d.nodes = append(d.nodes, n)
	}
	return d, nil
}

// capacities returns what a majority of Redis servers can do.
func capacities() driver.Caps {
	return driver.Caps{
		Name: "redlock", Lease: true, Remote: true, Fencing: true, Push: true,
		Modes: []driver.Mode{driver.Exclusive}, MinTTL: 100 * time.Millisecond,
	}
}

func (d *redDriver) Caps() driver.Caps { return capacities() }

// Close ends the subscriptions and the calls in flight. Removals that servers have not answered yet
// get one more attempt.
func (d *redDriver) Close() error {
	d.closeOnce.Do(func() {
		d.mu.Lock()
		d.closed = true
		for _, q := range d.queues {
			q.stopTimer()
		}
		d.mu.Unlock()
		d.cancel()
		for _, n := range d.nodes {
			n.subscription.close()
		}
		d.work.Wait()
		d.EventQueue.Close()
	})
	return nil
}

type redDriver struct {
	*driver.EventQueue
	settings settings
	prefix   string
	log      *slog.Logger
	nodes    []*node
	majority int
	info     redisnode.InfoText
	channel  string // on which nodes tell this driver that it is a claim's turn
	pace     pace
	rounds   atomic.Int64 // numbers rounds: a later one is greater
	warned   sync.Once
	unheard  sync.Once // warns that subscriptions are refused

	ctx       context.Context // ends with Close
	cancel    context.CancelFunc
	work      sync.WaitGroup
	workers   workers // make the calls to nodes
	closeOnce sync.Once

	mu     sync.Mutex
	closed bool
	claims map[claimID]*claim    // what this driver holds and waits for
	queues map[string]*waitQueue // by key: what it waits for
	yields map[string]time.Time  // by key: until when others go first
	// released are IDs of claims that were held and released: a node may still say that it is their turn.
	released map[string]struct{}
	swept    int // how many claims were left by the last look for forgotten ones
}
