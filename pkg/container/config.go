package container

import (
	"fmt"
	"strings"
	"time"

	"github.com/ceyewan/genesis/pkg/clog"
	"github.com/ceyewan/genesis/pkg/connector"
	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/xerrors"
)

// Errors that New and Load return before anything is built. Test with errors.Is.
var (
	// ErrConfigNil: no Config was given.
	ErrConfigNil = xerrors.ErrConfigNil
	// ErrInvalidConfig: a file cannot be read or parsed, a setting is unknown or out of range, or a
	// section is missing.
	ErrInvalidConfig = xerrors.ErrInvalidConfig
)

// Config is the configuration of a service. DLock.Backend says which of the other sections is
// needed. If it is empty, the section that is set is the backend.
type Config struct {
	// Log says how and what to log, unless WithLogger replaces it.
	Log clog.Config `json:"log" yaml:"log" mapstructure:"log"`
	// Redis is required for the backend redis.
	Redis *connector.RedisConfig `json:"redis,omitempty" yaml:"redis,omitempty" mapstructure:"redis"`
	// Etcd is required for the backend etcd.
	Etcd *connector.EtcdConfig `json:"etcd,omitempty" yaml:"etcd,omitempty" mapstructure:"etcd"`
	// Redlock is required for the backend redlock.
	Redlock *connector.RedlockConfig `json:"redlock,omitempty" yaml:"redlock,omitempty" mapstructure:"redlock"`
	// File is required for the backend file.
	File *FileConfig `json:"file,omitempty" yaml:"file,omitempty" mapstructure:"file"`
	// DLock configures the locks: their backend and their defaults. nil means an empty
	// dlock.Config.
	DLock *dlock.Config `json:"dlock,omitempty" yaml:"dlock,omitempty" mapstructure:"dlock"`
}

// Validate returns nil if New would accept the values of c without options. It does not read the
// files that the TLS sections name or the directory of the file backend, and it does not check
// whether this system supports that backend.
func (c *Config) Validate() error {
	if c == nil {
		return ErrConfigNil
	}
	if err := c.Log.Validate(); err != nil {
		return fmt.Errorf("%w: log: %w", ErrInvalidConfig, err)
	}
	locks, err := c.LockConfig()
	if err != nil {
		return err
	}
	if err := c.validateSection(locks.Backend); err != nil {
		return err
	}
	if err := locks.ValidateFor(capabilities[locks.Backend]); err != nil {
		return fmt.Errorf("%w: dlock: %w", ErrInvalidConfig, err)
	}
	return nil
}

// capabilities are those of the backends as far as a dlock.Config depends on them. New sees them
// once it has opened a backend, and Validate has to know them before.
var capabilities = map[dlock.BackendType]driver.Caps{
	dlock.BackendRedis:   {Name: "redis", FIFO: true, TokenRange: true, MinTTL: 10 * time.Millisecond},
	dlock.BackendEtcd:    {Name: "etcd", FIFO: true, MinTTL: time.Second},
	dlock.BackendRedlock: {Name: "redlock", MinTTL: 100 * time.Millisecond},
	dlock.BackendFile:    {Name: "file", TokenRange: true, MinTTL: time.Millisecond},
	dlock.BackendMemory:  {Name: "memory", FIFO: true, TokenRange: true, MinTTL: time.Millisecond},
}

// LockConfig returns the configuration of the locks with a backend name: that of DLock or, if DLock
// names none, the one whose section is set.
func (c *Config) LockConfig() (dlock.Config, error) {
	if c == nil {
		return dlock.Config{}, ErrConfigNil
	}
	var locks dlock.Config
	if c.DLock != nil {
		locks = *c.DLock
	}
	if locks.Backend != "" {
		return locks, nil
	}
	var set []string
	for _, s := range c.sections() {
		if s.isSet {
			set = append(set, string(s.backend))
		}
	}
	switch len(set) {
	case 0:
		return locks, fmt.Errorf("%w: dlock.backend is not set: redis, etcd, redlock, file or memory", ErrInvalidConfig)
	case 1:
		locks.Backend = dlock.BackendType(set[0])
		return locks, nil
	}
	return locks, fmt.Errorf("%w: dlock.backend is not set, and may be any of %s", ErrInvalidConfig, strings.Join(set, ", "))
}

// A section is what one backend needs.
type section struct {
	backend  dlock.BackendType
	isSet    bool
	validate func() error
}

func (c *Config) sections() []section {
	return []section{
		{dlock.BackendRedis, c.Redis != nil, c.Redis.Validate},
		{dlock.BackendEtcd, c.Etcd != nil, c.Etcd.Validate},
		{dlock.BackendRedlock, c.Redlock != nil, c.Redlock.Validate},
		{dlock.BackendFile, c.File != nil, c.File.Validate},
	}
}

func (c *Config) validateSection(backend dlock.BackendType) error {
	if backend == dlock.BackendMemory {
		return nil
	}
	for _, s := range c.sections() {
		if s.backend != backend {
			continue
		}
		if !s.isSet {
			return fmt.Errorf("%w: dlock.backend is %s, and the section %s is missing", ErrInvalidConfig, backend, backend)
		}
		if err := s.validate(); err != nil {
			return fmt.Errorf("%w: %s: %w", ErrInvalidConfig, backend, err)
		}
		return nil
	}
	return fmt.Errorf("%w: dlock.backend %q is none of redis, etcd, redlock, file, memory", ErrInvalidConfig, backend)
}
