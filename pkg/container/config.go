package container

import (
	"fmt"

	"github.com/ceyewan/genesis/pkg/clog"
	"github.com/ceyewan/genesis/pkg/connector"
	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/xerrors"
)

// What can go wrong before anything is built. Test with errors.Is.
var (
	// ErrConfigNil: no Config was given.
	ErrConfigNil = xerrors.New("config_nil", "config is nil")
	// ErrInvalidConfig: a file cannot be read or understood, a setting is not
	// known or out of range, or a section is missing.
	ErrInvalidConfig = xerrors.New("invalid_config", "invalid configuration")
)

// Config is the configuration of a service. DLock.Backend says which of the other
// sections are needed.
type Config struct {
	// Log is how and what to log, unless WithLogger says otherwise.
	Log clog.Config `json:"log" yaml:"log" mapstructure:"log"`
	// Redis is needed by the backend redis.
	Redis *connector.RedisConfig `json:"redis,omitempty" yaml:"redis,omitempty" mapstructure:"redis"`
	// Etcd is needed by the backend etcd.
	Etcd *connector.EtcdConfig `json:"etcd,omitempty" yaml:"etcd,omitempty" mapstructure:"etcd"`
	// Redlock is needed by the backend redlock.
	Redlock *connector.RedlockConfig `json:"redlock,omitempty" yaml:"redlock,omitempty" mapstructure:"redlock"`
	// File is needed by the backend file.
	File *FileConfig `json:"file,omitempty" yaml:"file,omitempty" mapstructure:"file"`
	// DLock are the locks: the backend redis, etcd, redlock, file or memory, and their
	// defaults.
	DLock dlock.Config `json:"dlock" yaml:"dlock" mapstructure:"dlock"`
}

// Validate returns nil if New would accept the values of c, as far as can be told
// without reading files.
func (c *Config) Validate() error {
	if c == nil {
		return ErrConfigNil
	}
	if err := c.Log.Validate(); err != nil {
		return fmt.Errorf("%w: log: %w", ErrInvalidConfig, err)
	}
	if err := c.DLock.Validate(); err != nil {
		return fmt.Errorf("%w: dlock: %w", ErrInvalidConfig, err)
	}
	return c.validateBackend()
}

func (c *Config) validateBackend() error {
	missing := func(section string) error {
		return fmt.Errorf("%w: dlock.backend is %s, and the section %s is missing", ErrInvalidConfig, section, section)
	}
	switch b := c.DLock.Backend; b {
	case "redis":
		if c.Redis == nil {
			return missing(b)
		}
		if err := c.Redis.Validate(); err != nil {
			return fmt.Errorf("%w: redis: %w", ErrInvalidConfig, err)
		}
	case "etcd":
		if c.Etcd == nil {
			return missing(b)
		}
		if err := c.Etcd.Validate(); err != nil {
			return fmt.Errorf("%w: etcd: %w", ErrInvalidConfig, err)
		}
	case "redlock":
		if c.Redlock == nil {
			return missing(b)
		}
		if err := c.Redlock.Validate(); err != nil {
			return fmt.Errorf("%w: redlock: %w", ErrInvalidConfig, err)
		}
	case "file":
		if c.File == nil {
			return missing(b)
		}
		if err := c.File.Validate(); err != nil {
			return fmt.Errorf("%w: file: %w", ErrInvalidConfig, err)
		}
	case "memory":
	case "":
		return fmt.Errorf("%w: dlock.backend is not set: redis, etcd, redlock, file or memory", ErrInvalidConfig)
	}
	return nil
}
