package remote

import (
	"fmt"

	"github.com/ceyewan/genesis/internal/cli"
	"github.com/ceyewan/genesis/pkg/clog"
	"github.com/ceyewan/genesis/pkg/connector"
	"github.com/ceyewan/genesis/pkg/container"
	"github.com/ceyewan/genesis/pkg/dlock"
)

// openConfig is the backend of a service, by the file that configures it.
func openConfig(u *cli.URL, log clog.Logger) (*cli.Backend, error) {
	cfg, err := container.Load(u.Path)
	if err != nil {
		return nil, err
	}
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("%s: %w", u.Path, err)
	}
	locks, err := cfg.LockConfig()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", u.Path, err)
	}
	b, err := configured(locks.Backend, cfg, connector.WithLogger(log))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", u.Path, err)
	}
	b.Config = locks
	return b, nil
}

func configured(backend dlock.BackendType, cfg *container.Config, opts ...connector.Option) (*cli.Backend, error) {
	switch backend {
	case dlock.BackendRedis:
		conn, err := connector.NewRedis(cfg.Redis, opts...)
		if err != nil {
			return nil, err
		}
		return ofRedis(conn), nil
	case dlock.BackendEtcd:
		conn, err := connector.NewEtcd(cfg.Etcd, opts...)
		if err != nil {
			return nil, err
		}
		return ofEtcd(conn), nil
	case dlock.BackendRedlock:
		conn, err := connector.NewRedlock(cfg.Redlock, opts...)
		if err != nil {
			return nil, err
		}
		return ofRedlock(conn), nil
	case dlock.BackendFile:
		return &cli.Backend{Name: "file", Where: "file://" + cfg.File.Dir, Opener: cfg.File.Store()}, nil
	case dlock.BackendMemory:
	}
	return nil, fmt.Errorf("dlock.backend is %s, whose locks no other process can see", backend)
}
