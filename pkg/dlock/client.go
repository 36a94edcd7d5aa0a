package dlock

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/ceyewan/genesis/pkg/clog"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/internal/bound"
	"github.com/ceyewan/genesis/pkg/dlock/internal/suspend"
)

// A Locker locks keys on behalf of a whole process. Client implements it.
type Locker interface {
	// Lock waits for key until ctx ends. See Client.Lock.
	Lock(ctx context.Context, key string, opts ...LockOption) error
	// TryLock does not wait. See Client.TryLock.
	TryLock(ctx context.Context, key string, opts ...LockOption) (bool, error)
	// Unlock releases what Lock or TryLock took. See Client.Unlock.
	Unlock(ctx context.Context, key string) error
	// Close releases everything. See Client.Close.
	Close() error
}

// A Client takes locks on one backend. It is safe for concurrent use, and one
// goroutine of it serves any number of locks.
type Client struct {
	cfg   Config
	caps  driver.Caps
	store driver.Driver
	log   clog.Logger
	quiet bool // nobody injected a logger
	info  driver.Info
	admin bool

	meters   *meters      // nil without a meter
	tracer   trace.Tracer // nil without one
	reporter *reporter

	epoch time.Time    // zero of the monotonic clock that now reads
	slept func() int64 // nil unless suspended time counts; see clock.go

	bounds    bound.Shared
	kick      chan struct{}   // wakes the scheduler: something is due earlier
	closing   context.Context // ends when Close begins; every backend call but clean-up ends with it
	hangUp    context.CancelFunc
	cleanup   context.Context // ends when Close stops cleaning up
	giveUp    context.CancelFunc
	closeBy   atomic.Int64   // when Close gives up; no clean-up call lasts longer
	stop      chan struct{}  // ends the scheduler
	workers   sync.WaitGroup // scheduler, renewals, clean-up
	closeOnce sync.Once
	closeErr  error

	mu          sync.Mutex
	closed      bool
	calls       sync.WaitGroup // acquisitions and releases under way; Add under mu
	ids         idSource
	claims      registry
	keyed       map[string]*hold // by key: what Lock and TryLock took
	handoffs    map[handoffName]*handoff
	timeline    timeline
	flights     [65]flight // by renewal class
	settling    settling
	strays      strays
	overdue     map[*Guard]*time.Timer // lost by WithMaxHold; to be released after the margin
	lookedAhead map[permitKey]int64    // when a waiter last looked who has its permits
	sleptBefore int64                  // suspended time when the scheduler last looked
	lookedAt    int64                  // and when that was
	alarm       int64                  // when the scheduler wakes by itself

	// What came up under mu, for unlock.
	endings    []ending
	handovers  []handover
	cleanups   []settlement
	departures departures
	reports    []report
}

var _ Locker = (*Client)(nil)

// New returns a Client on the backend that cfg names and an option brings:
// WithRedisConnector, WithEtcdConnector, WithRedlockConnector or WithBackend. It does no I/O. Close
// the Client; what was injected stays yours.
func New(cfg *Config, opts ...Option) (*Client, error) {
	c, err := build(cfg, opts)
	return c, fail("new", "", err)
}

// NewRedis returns a Client on Redis.
func NewRedis(conn RedisConnector, cfg *Config, opts ...Option) (*Client, error) {
	return newOn("redis", cfg, append([]Option{WithRedisConnector(conn)}, opts...))
}

// NewEtcd returns a Client on etcd.
func NewEtcd(conn EtcdConnector, cfg *Config, opts ...Option) (*Client, error) {
	return newOn("etcd", cfg, append([]Option{WithEtcdConnector(conn)}, opts...))
}

// NewRedlock returns a Client on several independent Redis servers.
func NewRedlock(conn RedlockConnector, cfg *Config, opts ...Option) (*Client, error) {
	return newOn("redlock", cfg, append([]Option{WithRedlockConnector(conn)}, opts...))
}

func newOn(backend string, cfg *Config, opts []Option) (*Client, error) {
	if cfg != nil && cfg.Backend == "" {
		named := *cfg
		named.Backend = backend
		cfg = &named
	}
	return New(cfg, opts...)
}

func build(cfg *Config, opts []Option) (*Client, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	full := cfg.withDefaults()
	o, err := collect(opts)
	if err != nil {
		return nil, err
	}
	c := &Client{
		cfg: full, admin: o.admin,
		log:    o.log.WithNamespace("dlock").With(clog.String("component", "dlock")),
		quiet:  o.log == clog.Logger{},
		info:   self(),
		epoch:  time.Now(),
		alarm:  never,
		kick:   make(chan struct{}, 1),
		stop:   make(chan struct{}),
		claims: newRegistry(), keyed: map[string]*hold{},
	}
	c.reporter = newReporter(func(m measurement) { c.meters.record(m) }, c.logDropped)
	if c.store, err = o.open(&full, c.reporter); err != nil {
		return nil, err
	}
	c.caps = c.store.Caps()
	if c.caps.Remote {
		c.slept = suspend.Simulated()
		if c.slept == nil {
			c.slept = suspendedTime(c.now)
		}
	}
	if o.clock != nil {
		c.slept = o.clock
	}
	c.sleptBefore, c.lookedAt = c.sleptSoFar(), c.now()
	c.closing, c.hangUp = context.WithCancel(context.Background())
	c.closeBy.Store(never)
	c.cleanup, c.giveUp = context.WithCancel(context.Background())
	c.tracer = o.tracer
	if o.meter != nil {
		if c.meters, err = newMeters(o.meter, c.caps.Name); err != nil {
			return nil, closeAfter(c.store, err)
		}
	}
	c.workers.Go(c.schedule)
	return c, nil
}

// self describes this process to those who inspect its claims.
func self() driver.Info {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return driver.Info{Owner: filepath.Base(os.Args[0]), Host: host, PID: os.Getpid()}
}

// closeBound is how long Close tries to release what is held.
const closeBound = 2 * time.Second

// Close ends the contexts of all guards, answers every waiter with ErrClosed,
// stops renewal, and releases everything concurrently. What the backend refuses, or does
// not confirm within two seconds, is left to its lease, and Close says so with
// ErrUnknownOutcome. It returns when no goroutine of the Client is left, but for one
// that an injected logger, meter or tracer keeps. A lock that was lost with its lease, and is
// not unlocked yet, is left to what the backend has of it. The injected client stays open. A
// second Close waits for the first and returns the same.
func (c *Client) Close() error {
	c.closeOnce.Do(func() { c.closeErr = fail("close", "", c.shutdown()) })
	return c.closeErr
}

func (c *Client) shutdown() error {
	c.mu.Lock()
	for g := range c.overdue {
		c.sweepLost(g)
	}
	c.closed = true
	c.endAll()
	c.unlock() // guards learn of it before anything is sent
	c.hangUp() // waiters and calls under way return, and leave what they cannot settle
	c.closeBy.Store(after(c.now(), closeBound))
	bound := time.AfterFunc(closeBound, c.giveUp)
	c.calls.Wait()
	left, cause := c.settleAll()
	bound.Stop()
	c.giveUp()
	close(c.stop)
	c.workers.Wait()
	err := c.store.Close()
	if idle, _ := c.reporter.state(); !idle {
		c.reporter.flush(max(time.Duration(c.closeBy.Load()-c.now()), closeBound/10))
	}
	if left > 0 {
		unsettled := fmt.Errorf("%w: %d claims are left to their leases", ErrUnknownOutcome, left)
		if cause != nil {
			unsettled = fmt.Errorf("%w: %w", unsettled, notCallers(cause))
		}
		if err != nil {
			return fmt.Errorf("%w; %w", unsettled, err)
		}
		return unsettled
	}
	return err
}

// endAll ends every claim that is held and hands it to clean-up. Claims that are
// still being acquired are left to the calls that wait for them.
func (c *Client) endAll() {
	for cl := range c.claims.all() {
		switch cl.phase {
		case held:
			c.finish(cl, ErrClosed)
			c.settle(cl)
		case lingering:
			over := cl.holdEnd() <= c.now() // and the scheduler has not come to it yet
			c.finish(cl, nil)
			if over || !c.caps.Lease {
				c.settle(cl)
			}
		case filing, queued, granted, ended:
		}
	}
}

// enter registers a call that may leave a claim behind; leave ends it.
func (c *Client) enter() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return ErrClosed
	}
	c.calls.Add(1)
	return nil
}

func (c *Client) leave() { c.calls.Done() }
