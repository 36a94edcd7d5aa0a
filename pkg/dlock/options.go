package dlock

import (
	"fmt"
	"log/slog"
	"reflect"

	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/ceyewan/genesis/pkg/clog"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// An Option gives a Client a collaborator. What is injected is never closed.
type Option func(*options)

// A RedisConnector opens locks on a Redis client that it owns.
type RedisConnector interface{ RedisLocks() driver.Opener }

// An EtcdConnector opens locks on an etcd client that it owns.
type EtcdConnector interface{ EtcdLocks() driver.Opener }

// A RedlockConnector opens locks on the clients of several independent Redis servers,
// which it owns.
type RedlockConnector interface{ RedlockLocks() driver.Opener }

// WithLogger sets where the Client writes its log; without it, nowhere. A
// logger that blocks or panics does not disturb the locks.
func WithLogger(l clog.Logger) Option {
	return func(o *options) { o.log = l }
}

// WithMeter measures what the Client does; see docs/observability.md.
func WithMeter(m metric.Meter) Option {
	return func(o *options) { o.meter = m }
}

// WithTracer traces acquisitions, holds and releases; see docs/observability.md.
func WithTracer(t trace.Tracer) Option {
	return func(o *options) { o.tracer = t }
}

// WithRedisConnector offers Redis as a backend.
func WithRedisConnector(conn RedisConnector) Option {
	return func(o *options) {
		if isNil(conn) {
			o.offer("redis", nil)
			return
		}
		o.offer("redis", conn.RedisLocks())
	}
}

// WithEtcdConnector offers etcd as a backend.
func WithEtcdConnector(conn EtcdConnector) Option {
	return func(o *options) {
		if isNil(conn) {
			o.offer("etcd", nil)
			return
		}
		o.offer("etcd", conn.EtcdLocks())
	}
}

// WithRedlockConnector offers several Redis servers as a backend.
func WithRedlockConnector(conn RedlockConnector) Option {
	return func(o *options) {
		if isNil(conn) {
			o.offer("redlock", nil)
			return
		}
		o.offer("redlock", conn.RedlockLocks())
	}
}

// WithBackend offers a backend by its opener, for instance memlock.New() or
// one of your own.
func WithBackend(b driver.Opener) Option {
	return func(o *options) { o.offer("", b) }
}

// WithAdmin allows Client.Admin. It is off by default, since an Admin can take
// locks away from their holders.
func WithAdmin() Option {
	return func(o *options) { o.admin = true }
}

type options struct {
	log    clog.Logger
	meter  metric.Meter
	tracer trace.Tracer
	admin  bool
	offers []offer
	clock  func() int64 // tests: replaces the clock of suspended time
}

// An offer is a backend that was injected. A name of "" is known only once the
// backend has been opened.
type offer struct {
	name   string
	opener driver.Opener
}

func (o *options) offer(name string, b driver.Opener) {
	o.offers = append(o.offers, offer{name, b})
}

func collect(opts []Option) (*options, error) {
	o := &options{}
	for i, opt := range opts {
		if opt == nil {
			return nil, fmt.Errorf("%w: option %d is nil", ErrInvalidConfig, i)
		}
		opt(o)
	}
	return o, nil
}

// open opens the one offer that the config asks for.
func (o *options) open(cfg *Config, r *reporter) (driver.Driver, error) {
	var chosen *offer
	for i := range o.offers {
		if n := o.offers[i].name; n != "" && cfg.Backend != "" && n != cfg.Backend {
			continue
		}
		if chosen != nil {
			return nil, fmt.Errorf("%w: Backend %q fits several of the backends that were injected", ErrInvalidConfig, cfg.Backend)
		}
		chosen = &o.offers[i]
	}
	if chosen == nil && len(o.offers) > 0 {
		return nil, fmt.Errorf("%w: Backend %q, but a connector for %s was injected", ErrInvalidConfig, cfg.Backend, o.offers[0].name)
	}
	if chosen == nil || isNil(chosen.opener) {
		return nil, fmt.Errorf("%w: Backend %q needs a connector or WithBackend", ErrConnectorNil, cfg.Backend)
	}
	d, err := chosen.opener.Open(driver.Options{Prefix: cfg.Prefix, Logger: o.driverLog(r)})
	if err != nil {
		return nil, err
	}
	if err := fits(cfg, d.Caps()); err != nil {
		return nil, closeAfter(d, err)
	}
	return d, nil
}

// driverLog is where a Driver writes: to the reporter, or nowhere.
func (o *options) driverLog(r *reporter) *slog.Logger {
	if o.log == (clog.Logger{}) {
		return o.log.Slog()
	}
	return slog.New(driverLogger{o.log.Slog().Handler(), r})
}

func fits(cfg *Config, caps driver.Caps) error {
	if cfg.Backend != "" && cfg.Backend != caps.Name {
		return fmt.Errorf("%w: Backend %q, but the backend that was injected is %s", ErrInvalidConfig, cfg.Backend, caps.Name)
	}
	if cfg.RequireFair && !caps.FIFO {
		return fmt.Errorf("%w: RequireFair, but %s does not grant in order of arrival", ErrUnsupported, caps.Name)
	}
	if err := checkBatch(cfg, caps); err != nil {
		return err
	}
	if err := checkTTL(cfg.DefaultTTL, caps.MinTTL); err != nil {
		return fmt.Errorf("%w: DefaultTTL: %w", ErrInvalidConfig, err)
	}
	return nil
}

func closeAfter(d driver.Driver, err error) error {
	if cerr := d.Close(); cerr != nil {
		return fmt.Errorf("%w (and closing: %w)", err, cerr)
	}
	return err
}

// isNil also sees a nil pointer inside a non-nil interface.
func isNil(v any) bool {
	if v == nil {
		return true
	}
	rv := reflect.ValueOf(v)
	return rv.Kind() == reflect.Pointer && rv.IsNil()
}
