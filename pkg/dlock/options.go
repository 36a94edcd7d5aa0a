package dlock

import (
	"context"
	"fmt"
	"log/slog"
	"reflect"

	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/ceyewan/genesis/pkg/clog"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// An Option gives a Client a dependency. The Client never closes what is injected.
type Option func(*options)

// A RedisConnector opens locks on a Redis client that it owns.
type RedisConnector interface{ RedisLocks() driver.Opener }

// An EtcdConnector opens locks on an etcd client that it owns.
type EtcdConnector interface{ EtcdLocks() driver.Opener }

// A RedlockConnector opens locks on the clients of several independent Redis servers,
// which it owns.
type RedlockConnector interface{ RedlockLocks() driver.Opener }

// WithLogger sets the logger of the Client. Without it, the Client logs warnings and errors to
// slog.Default, as it is at that time. The zero Logger discards everything. A logger that blocks or panics does not
// affect the locks.
func WithLogger(l clog.Logger) Option {
	return func(o *options) { o.log, o.hasLog = l, true }
}

// WithSlog is WithLogger for programs that log with log/slog. A nil logger means
// slog.Default at the time when the Client is created.
func WithSlog(l *slog.Logger) Option {
	return func(o *options) {
		to := l
		if to == nil {
			to = slog.Default()
		}
		o.log, o.hasLog = clog.FromSlog(to), true
	}
}

// WithMeter sets the meter for the metrics of the Client; see docs/observability.md.
func WithMeter(m metric.Meter) Option {
	return func(o *options) { o.meter = m }
}

// WithTracer sets the tracer for acquisitions, holds and releases; see
// docs/observability.md.
func WithTracer(t trace.Tracer) Option {
	return func(o *options) { o.tracer = t }
}

// WithRedisConnector provides Redis as a backend.
func WithRedisConnector(conn RedisConnector) Option {
	return func(o *options) {
		if isNil(conn) {
			o.offer(BackendRedis, nil)
			return
		}
		o.offer(BackendRedis, conn.RedisLocks())
	}
}

// WithEtcdConnector provides etcd as a backend.
func WithEtcdConnector(conn EtcdConnector) Option {
	return func(o *options) {
		if isNil(conn) {
			o.offer(BackendEtcd, nil)
			return
		}
		o.offer(BackendEtcd, conn.EtcdLocks())
	}
}

// WithRedlockConnector provides several Redis servers as a backend.
func WithRedlockConnector(conn RedlockConnector) Option {
	return func(o *options) {
		if isNil(conn) {
			o.offer(BackendRedlock, nil)
			return
		}
		o.offer(BackendRedlock, conn.RedlockLocks())
	}
}

// WithBackend provides a backend through its opener, for instance memlock.New() or your own.
func WithBackend(b driver.Opener) Option {
	return func(o *options) { o.offer("", b) }
}

// WithAdmin enables Client.Admin. It is off by default, because an Admin can evict holders.
func WithAdmin() Option {
	return func(o *options) { o.admin = true }
}

type options struct {
	log    clog.Logger
	hasLog bool // WithLogger or WithSlog
	meter  metric.Meter
	tracer trace.Tracer
	admin  bool
	offers []offer
	clock  func() int64 // in tests: replaces Client.suspended
}

// An offer is a backend that was injected. If name is "", opening the backend gives its name.
type offer struct {
	name   BackendType
	opener driver.Opener
}

func (o *options) offer(name BackendType, b driver.Opener) {
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
	if !o.hasLog {
		o.log = clog.FromSlog(slog.New(defaultWarnings{func(h slog.Handler) slog.Handler { return h }}))
	}
	return o, nil
}

// defaultWarnings passes warnings and errors on to slog.Default as it is at that time: a program may set it after it has
// created its clients. with adds attributes and groups.
type defaultWarnings struct {
	with func(slog.Handler) slog.Handler
}

func (w defaultWarnings) Enabled(ctx context.Context, level slog.Level) bool {
	return level >= slog.LevelWarn && slog.Default().Enabled(ctx, level)
}

func (w defaultWarnings) Handle(ctx context.Context, r slog.Record) error {
	return w.with(slog.Default().Handler()).Handle(ctx, r)
}

func (w defaultWarnings) WithAttrs(attrs []slog.Attr) slog.Handler {
	return defaultWarnings{func(h slog.Handler) slog.Handler { return w.with(h).WithAttrs(attrs) }}
}

func (w defaultWarnings) WithGroup(name string) slog.Handler {
	return defaultWarnings{func(h slog.Handler) slog.Handler { return w.with(h).WithGroup(name) }}
}

// open opens the one offer that matches the config.
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
	if err := cfg.fits(d.Caps()); err != nil {
		return nil, closeAfter(d, err)
	}
	return d, nil
}

// driverLog returns the logger of a Driver, which writes to the reporter or discards.
func (o *options) driverLog(r *reporter) *slog.Logger {
	if o.log == (clog.Logger{}) {
		return o.log.Slog()
	}
	return slog.New(driverLogger{o.log.Slog().Handler(), r})
}

func closeAfter(d driver.Driver, err error) error {
	if cerr := d.Close(); cerr != nil {
		return fmt.Errorf("%w (and closing: %w)", err, cerr)
	}
	return err
}

// isNil also detects a nil pointer, function or map inside a non-nil interface.
func isNil(v any) bool {
	if v == nil {
		return true
	}
	rv := reflect.ValueOf(v)
	switch rv.Kind() {
	case reflect.Pointer, reflect.Func, reflect.Map, reflect.Slice, reflect.Chan:
		return rv.IsNil()
	default:
		return false
	}
}
