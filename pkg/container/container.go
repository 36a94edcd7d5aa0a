// Package container assembles the parts of a service: it reads one configuration, creates the
// connector that its backend needs, and creates the lock Client on it. The Container closes what it
// creates, and does not close what is injected.
//
//	cfg, err := container.Load("service.yaml")
//	if err != nil {
//		return err
//	}
//	app, err := container.New(cfg, container.WithLogger(logger))
//	if err != nil {
//		return err
//	}
//	defer app.Close()
//	err = app.DLock.Do(ctx, "report", makeReport)
//
// The package links the clients of all backends. To keep the program small, use dlock.New with one
// backend.
package container

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/trace"
	notrace "go.opentelemetry.io/otel/trace/noop"

	"github.com/ceyewan/genesis/pkg/clog"
	"github.com/ceyewan/genesis/pkg/connector"
	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/memlock"
)

// A Container holds the parts of a service.
type Container struct {
	Log    clog.Logger
	Meter  metric.Meter // never nil
	Tracer trace.Tracer // never nil
	DLock  *dlock.Client
	// Redis, Etcd or Redlock is the connector that the backend needs. The others are nil.
	Redis   *connector.Redis
	Etcd    *connector.Etcd
	Redlock *connector.Redlock

	made      []part // in the order in which they were made
	closeOnce sync.Once
	closeErr  error
}

// A part is something that the Container has created.
type part struct {
	name    string
	close   func() error
	connect func(context.Context) error // nil if there is nothing to connect
}

// An Option injects a collaborator, which the Container never closes.
type Option func(*settings)

type settings struct {
	log    *clog.Logger
	meter  metric.Meter
	tracer trace.Tracer
	locks  []dlock.Option
	conns  []connector.Option
}

// WithLogger replaces the logger of Config.Log.
func WithLogger(l clog.Logger) Option { return func(s *settings) { s.log = &l } }

// WithMeter sets the meter of all parts. Without it, nothing is measured.
func WithMeter(m metric.Meter) Option { return func(s *settings) { s.meter = m } }

// WithTracer sets the tracer of all parts. Without it, nothing is traced.
func WithTracer(t trace.Tracer) Option { return func(s *settings) { s.tracer = t } }

// WithDLockOptions passes options to the lock Client, such as dlock.WithAdmin.
func WithDLockOptions(opts ...dlock.Option) Option {
	return func(s *settings) { s.locks = append(s.locks, opts...) }
}

// WithConnectorOptions passes options to the connector, such as connector.WithRedisLockOptions.
func WithConnectorOptions(opts ...connector.Option) Option {
	return func(s *settings) { s.conns = append(s.conns, opts...) }
}

// New builds all parts and touches no network; see Connect. If a part cannot be built, New closes
// the parts that it has created.
func New(cfg *Config, opts ...Option) (*Container, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("container: %w", err)
	}
	s := settings{meter: noop.Meter{}, tracer: notrace.Tracer{}}
	for i, opt := range opts {
		if opt == nil {
			return nil, fmt.Errorf("container: %w: option %d is nil", ErrInvalidConfig, i)
		}
		opt(&s)
	}
	if s.meter == nil {
		return nil, fmt.Errorf("container: %w: the meter is nil", ErrInvalidConfig)
	}
	if s.tracer == nil {
		return nil, fmt.Errorf("container: %w: the tracer is nil", ErrInvalidConfig)
	}
	c := &Container{Meter: s.meter, Tracer: s.tracer}
	if s.log != nil {
		c.Log = *s.log
	} else {
		c.Log = clog.New(&cfg.Log)
	}
	if err := c.build(cfg, &s); err != nil {
		return nil, fmt.Errorf("container: %w", errors.Join(err, c.Close()))
	}
	return c, nil
}

func (c *Container) build(cfg *Config, s *settings) error {
	locks, err := cfg.LockConfig()
	if err != nil {
		return err
	}
	backend, err := c.backend(locks.Backend, cfg, append([]connector.Option{connector.WithLogger(c.Log)}, s.conns...))
	if err != nil {
		return err
	}
	opts := []dlock.Option{dlock.WithLogger(c.Log), dlock.WithBackend(backend)}
	if _, silent := s.meter.(noop.Meter); !silent {
		opts = append(opts, dlock.WithMeter(s.meter))
	}
	if _, silent := s.tracer.(notrace.Tracer); !silent {
		opts = append(opts, dlock.WithTracer(s.tracer))
	}
	c.DLock, err = dlock.New(&locks, append(opts, s.locks...)...)
	if err != nil {
		return err
	}
	c.made = append(c.made, part{name: "dlock", close: c.DLock.Close})
	return nil
}

// backend creates the backend of the locks.
func (c *Container) backend(kind dlock.BackendType, cfg *Config, opts []connector.Option) (driver.Opener, error) {
	switch kind {
	case dlock.BackendRedis:
		conn, err := connector.NewRedis(cfg.Redis, opts...)
		if err != nil {
			return nil, err
		}
		c.Redis = conn
		c.made = append(c.made, part{"redis", conn.Close, conn.Connect})
		return conn.RedisLocks(), nil
	case dlock.BackendEtcd:
		conn, err := connector.NewEtcd(cfg.Etcd, opts...)
		if err != nil {
			return nil, err
		}
		c.Etcd = conn
		c.made = append(c.made, part{"etcd", conn.Close, conn.Connect})
		return conn.EtcdLocks(), nil
	case dlock.BackendRedlock:
		conn, err := connector.NewRedlock(cfg.Redlock, opts...)
		if err != nil {
			return nil, err
		}
		c.Redlock = conn
		c.made = append(c.made, part{"redlock", conn.Close, conn.Connect})
		return conn.RedlockLocks(), nil
	case dlock.BackendFile:
		return cfg.File.Store(), nil
	case dlock.BackendMemory:
	}
	return memlock.New(), nil
}

// Connect checks whether the server of the backend can be reached. Calling it is optional:
// connections are opened when they are first used.
func (c *Container) Connect(ctx context.Context) error {
	for _, p := range c.made {
		if p.connect == nil {
			continue
		}
		if err := p.connect(ctx); err != nil {
			return fmt.Errorf("container: %s: %w", p.name, err)
		}
	}
	return nil
}

// Close closes all parts in reverse order, and continues if one fails. A second Close returns the
// same error.
func (c *Container) Close() error {
	c.closeOnce.Do(func() {
		var errs []error
		for i := len(c.made) - 1; i >= 0; i-- {
			if err := c.made[i].close(); err != nil {
				errs = append(errs, fmt.Errorf("close %s: %w", c.made[i].name, err))
			}
		}
		c.closeErr = errors.Join(errs...)
	})
	return c.closeErr
}
