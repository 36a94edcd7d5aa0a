// Package redlock keeps locks on an odd number of independent Redis servers. A lock
// is held by whoever has it on a majority of them, so that a minority may be down.
//
// On each server a lock is the same plain string as in package redislock, and every
// client that locks with SET NX PX on the same servers, such as redsync, excludes us
// and is excluded. Servers neither queue nor hand over: claims of one Client stand in
// line in their process, and processes contend with some randomness between them.
// docs/backends/redlock.md says what this promises and on which conditions, and
// docs/adr/0010-redlock-fencing.md why tokens increase.
package redlock

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/internal/redisnode"
)

// An Option changes how locks are kept.
type Option func(*settings)

// WithDrift sets how much faster one clock may run than another, as a share of the
// TTL that is not counted on: 0.01 unless said otherwise.
func WithDrift(share float64) Option { return func(s *settings) { s.drift = share } }

// WithNodeTimeout sets how long one server may take to answer: 500 ms unless said
// otherwise, and never more than a quarter of the TTL. Close, and what is cleaned up
// after a server comes back, may have to wait as long.
func WithNodeTimeout(d time.Duration) Option { return func(s *settings) { s.nodeTimeout = d } }

type settings struct {
	drift       float64
	nodeTimeout time.Duration // 0: the usual
	bad         error         // what Open returns
}

const (
	// usual is how long a call to one server may take unless the user says otherwise,
	// and longestMost is what he may say. Nothing else ends a call that the client has
	// begun, so Close waits for it.
	usual       = 500 * time.Millisecond
	longestMost = 5 * time.Second
	// coarse is what the rounding of expiries may take, as the algorithm has it.
	coarse = 2 * time.Millisecond
)

// patience is how long a server may take to answer about a claim. Two such calls win a
// lock, and leave half of the lease. Nobody waits for a server that is dead as long as
// a majority answers, so a shorter time would only make false alarms.
func (s *settings) patience(ttl time.Duration) time.Duration { return min(s.longest(), ttl/4) }

// longest is how long a server may take to answer about anything.
func (s *settings) longest() time.Duration {
	if s.nodeTimeout > 0 {
		return s.nodeTimeout
	}
	return usual
}

// until is when a lease that was asked for at sent is over by the fastest clock.
func (s *settings) until(sent time.Time, ttl time.Duration) time.Time {
	return sent.Add(ttl - time.Duration(float64(ttl)*s.drift) - coarse)
}

// New returns a backend on clients of independent servers, which stay open when locks
// are closed: three or a greater odd number, five being a good one. What is wrong with
// them, Open says with ErrNodes.
func New(clients []redis.UniversalClient, opts ...Option) driver.Opener {
	o := &opener{clients: append([]redis.UniversalClient(nil), clients...), settings: settings{drift: 0.01}}
	for i, opt := range opts {
		if opt == nil {
			o.settings.bad = fmt.Errorf("%w: option %d is nil", ErrNodes, i)
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
		Outbox: driver.NewOutbox(1024), settings: o.settings, prefix: opts.Prefix, log: opts.Logger,
		majority: len(servers)/2 + 1, claims: map[claimID]*claim{}, lines: map[string]*line{}, yields: map[string]time.Time{},
	}
	d.ctx, d.cancel = context.WithCancel(context.Background())
	for i, c := range servers {
		n := &node{at: i, addr: c.Options().Addr, client: c, driver: d}
		if !c.Options().ContextTimeoutEnabled {
			n.client = c.WithTimeout(o.settings.longest()) // the same connections; only its own time-outs end a call
		}
		n.ear.node = n
		d.nodes = append(d.nodes, n)
	}
	return d, nil
}

// capacities are what a majority of Redis servers can do.
func capacities() driver.Caps {
	return driver.Caps{
		Name: "redlock", Lease: true, Remote: true, Fencing: true, Push: true,
		Modes: []driver.Mode{driver.Exclusive}, MinTTL: 100 * time.Millisecond,
	}
}

func (d *redDriver) Caps() driver.Caps { return capacities() }

// Close ends the subscriptions and what is still on its way. What servers have not
// heard of yet gets one more attempt.
func (d *redDriver) Close() error {
	d.closeOnce.Do(func() {
		d.mu.Lock()
		d.closed = true
		for _, l := range d.lines {
			l.stopTimer()
		}
		d.mu.Unlock()
		d.cancel()
		for _, n := range d.nodes {
			n.ear.close()
		}
		d.work.Wait()
		d.Outbox.Close()
	})
	return nil
}

type redDriver struct {
	*driver.Outbox
	settings settings
	prefix   string
	log      *slog.Logger
	nodes    []*node
	majority int
	info     redisnode.InfoText
	pace     pace
	rounds   atomic.Int64 // numbers rounds: a later one is greater
	warned   sync.Once
	unheard  sync.Once // warns that subscriptions are refused

	ctx       context.Context // ends with Close
	cancel    context.CancelFunc
	work      sync.WaitGroup
	closeOnce sync.Once

	mu     sync.Mutex
	closed bool
	claims map[claimID]*claim   // what this driver holds and waits for
	lines  map[string]*line     // by key: what it waits for
	yields map[string]time.Time // by key: until when others go first
	swept  int                  // how many claims were left by the last look for forgotten ones
}
