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
	"github.com/ceyewan/genesis/pkg/dlock/internal/sharedtimeout"
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

// A Client acquires locks on one backend. It is safe for concurrent use. One goroutine
// serves any number of locks.
type Client struct {
	cfg       Config
	caps      driver.Caps
	store     driver.Driver
	late      driver.LateReleaser // the same, if it is one
	batcher   driver.Batcher      // the same, if it is one
	log       clog.Logger
	quiet     bool // the logger discards everything
	retryLog  retryLog
	warnsOnly bool // it discards what is below a warning, as the default logger does
	info      driver.Info
	admin     bool

	meters   *meters      // nil without a meter
	tracer   trace.Tracer // nil without one
	reporter *reporter

	epoch     time.Time    // the time at which now is 0
	suspended func() int64 // nil unless suspended time counts; see clock.go

	timeouts      sharedtimeout.Contexts
	wake          chan struct{}   // wakes the scheduler: something is due earlier
	turns         chan struct{}   // see awaitTurn
	answers       atomic.Int64    // to attempts to acquire
	closing       context.Context // ends when Close begins; every backend call but cleanup ends with it
	cancelCalls   context.CancelFunc
	cleanup       context.Context // ends when Close stops cleaning up
	cancelCleanup context.CancelFunc
	closeBy       atomic.Int64   // when Close gives up; no cleanup call lasts longer
	stop          chan struct{}  // ends the scheduler
	workers       sync.WaitGroup // scheduler, renewals, cleanup
	closeOnce     sync.Once
	closeErr      error

	mu               sync.Mutex
	closed           bool
	calls            sync.WaitGroup // acquisitions and releases in progress; Add under mu
	ids              idSource
	claims           registry
	keyed            map[string]*keyedLock // by key: what Lock and TryLock took
	handoffs         map[handoffName]*handoff
	timeline         timeline
	renewals         [65]renewalBatch // by renewal class
	cleanupQueue     cleanupQueue
	ignored          ignoredIDs
	lost             lostGuards
	health           healthRecord
	endingLosses     endingLosses
	foundHolderAt    map[permitKey]int64 // when a waiter last looked up the holder
	suspendedBefore  int64               // suspended time at the scheduler's last check for a suspend
	suspendCheckedAt int64               // the time of that check
	timerAt          int64               // when the scheduler's timer fires

	effects
	abandoned abandonedClaims
}

var _ Locker = (*Client)(nil)

// New returns a Client on the backend that cfg names and an option provides:
// WithRedisConnector, WithEtcdConnector, WithRedlockConnector or WithBackend. It does no
// I/O. The caller must close the Client, which does not close what was injected.
func New(cfg *Config, opts ...Option) (*Client, error) {
	c, err := build(cfg, opts)
	return c, fail("new", "", err)
}

// NewRedis returns a Client on Redis.
func NewRedis(conn RedisConnector, cfg *Config, opts ...Option) (*Client, error) {
	return newOn(BackendRedis, cfg, append([]Option{WithRedisConnector(conn)}, opts...))
}

// NewEtcd returns a Client on etcd.
func NewEtcd(conn EtcdConnector, cfg *Config, opts ...Option) (*Client, error) {
	return newOn(BackendEtcd, cfg, append([]Option{WithEtcdConnector(conn)}, opts...))
}

// NewRedlock returns a Client on several independent Redis servers.
func NewRedlock(conn RedlockConnector, cfg *Config, opts ...Option) (*Client, error) {
	return newOn(BackendRedlock, cfg, append([]Option{WithRedlockConnector(conn)}, opts...))
}

func newOn(backend BackendType, cfg *Config, opts []Option) (*Client, error) {
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
		log:   o.log.WithNamespace("dlock").With(clog.String("component", "dlock")),
		quiet: o.log == clog.Logger{},

		warnsOnly: !o.hasLog || o.log == clog.Logger{},
		info:      processInfo(),
		epoch:     time.Now(),
		timerAt:   never,
		wake:      make(chan struct{}, 1),
		turns:     make(chan struct{}, maxRetrying),
		stop:      make(chan struct{}),
		claims:    newRegistry(), keyed: map[string]*keyedLock{},
	}
	c.reporter = newReporter(func(m measurement) { c.meters.record(m) }, c.logDropped)
	if c.store, err = o.open(&full, c.reporter); err != nil {
		return nil, err
	}
	c.caps = c.store.Caps()
	c.late, _ = c.store.(driver.LateReleaser)
	c.batcher, _ = c.store.(driver.Batcher)
	if c.caps.Remote {
		c.suspended = suspend.Simulated()
		if c.suspended == nil {
			c.suspended = suspendedTime(c.now)
		}
	}
	if o.clock != nil {
		c.suspended = o.clock
	}
	c.suspendedBefore, c.suspendCheckedAt = c.suspendedTotal(), c.now()
	c.closing, c.cancelCalls = context.WithCancel(context.Background())
	c.closeBy.Store(never)
	c.cleanup, c.cancelCleanup = context.WithCancel(context.Background())
	c.tracer = o.tracer
	if o.meter != nil {
		if c.meters, err = newMeters(o.meter, c.caps.Name); err != nil {
			return nil, closeAfter(c.store, err)
		}
	}
	c.workers.Go(c.schedule)
	return c, nil
}

// processInfo describes this process in its claims.
func processInfo() driver.Info {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return driver.Info{Owner: filepath.Base(os.Args[0]), Host: host, PID: os.Getpid()}
}

// Backend returns the kind of the Client's backend: BackendRedis and so on.
func (c *Client) Backend() BackendType { return BackendType(c.caps.Name) }

// closeTimeout limits how long Close tries to release claims.
const closeTimeout = 2 * time.Second

// Close ends the contexts of all guards, returns ErrClosed to every waiter, stops renewal, and
// releases all locks concurrently, including lost locks that may still be stored at the
// backend. If the backend refuses a release, or does not confirm it within two seconds, the
// claim ends with its lease, and Close returns ErrUnknownOutcome. Close returns when no
// goroutine of the Client is left, except for one that an injected logger, meter or tracer
// blocks. The injected client stays open. A second Close waits for the first and returns the
// same error.
func (c *Client) Close() error {
	c.closeOnce.Do(func() { c.closeErr = fail("close", "", c.shutdown()) })
	return c.closeErr
}

func (c *Client) shutdown() error {
	c.mu.Lock()
	for g := range c.lost {
		c.releaseLost(g)
	}
	c.closed = true
	c.endAll()
	c.unlock()      // ends the contexts of guards before anything is sent
	c.cancelCalls() // waiters and calls return, and hand their claims to cleanup
	c.closeBy.Store(after(c.now(), closeTimeout))
	timeout := time.AfterFunc(closeTimeout, c.cancelCleanup)
	c.calls.Wait()
	left, cause := c.cleanUpAll()
	timeout.Stop()
	c.cancelCleanup()
	close(c.stop)
	c.workers.Wait()
	err := c.store.Close()
	if idle, _ := c.reporter.state(); !idle {
		c.reporter.flush(max(time.Duration(c.closeBy.Load()-c.now()), closeTimeout/10))
	}
	if left > 0 {
		unanswered := fmt.Errorf("%w: %d claims are left to their leases", ErrUnknownOutcome, left)
		if cause != nil {
			unanswered = fmt.Errorf("%w: %w", unanswered, mayBeStored(hideContextErrors(cause)))
		}
		if err != nil {
			return fmt.Errorf("%w; %w", unanswered, err)
		}
		return unanswered
	}
	return err
}

// endAll ends every held claim and hands it to cleanup. Other claims are ended by the calls
// that wait for them.
func (c *Client) endAll() {
	for cl := range c.claims.all() {
		switch cl.phase {
		case held:
			c.finish(cl, ErrClosed)
			c.cleanUp(cl)
		case lingering:
			passed := cl.holdEnd() <= c.now() // the scheduler has not handled it yet
			c.finish(cl, nil)
			if passed || !c.caps.Lease {
				c.cleanUp(cl)
			}
		case submitting, queued, granted, ended:
		}
	}
}

// beginCall registers a call that Close must wait for; endCall ends it.
func (c *Client) beginCall() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return ErrClosed
	}
	c.calls.Add(1)
	return nil
}

func (c *Client) endCall() { c.calls.Done() }
