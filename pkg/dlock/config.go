package dlock

import (
	"fmt"
	"log/slog"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/internal/durations"
)

// A BackendType names a kind of backend.
type BackendType string

// The backends of this module. A backend by another author has its own name, and is passed
// with WithBackend.
const (
	BackendRedis   BackendType = "redis"
	BackendEtcd    BackendType = "etcd"
	BackendRedlock BackendType = "redlock"
	BackendFile    BackendType = "file"
	BackendMemory  BackendType = "memory"
)

// Config has the settings of a Client; dependencies are passed as Options. The zero value
// is usable: zero fields mean the defaults named below.
type Config struct {
	// Backend is the kind of backend: BackendRedis and so on, or the name of one that is
	// passed with WithBackend. "" accepts any backend that was injected.
	Backend BackendType `json:"backend" yaml:"backend" mapstructure:"backend"`
	// Prefix is put before every key in the store.
	Prefix string `json:"prefix" yaml:"prefix" mapstructure:"prefix"`
	// DefaultTTL is the lease of a lock that is acquired without WithTTL. The default is 10 s.
	DefaultTTL time.Duration `json:"default_ttl" yaml:"default_ttl" mapstructure:"default_ttl"`
	// RetryInterval is the first pause after a backend error. The default is 100 ms.
	// Pauses double up to one second, with jitter.
	RetryInterval time.Duration `json:"retry_interval" yaml:"retry_interval" mapstructure:"retry_interval"`
	// RenewInterval is how often a held lock is renewed. It is never above a
	// third of the lock's TTL, which is also the default.
	RenewInterval time.Duration `json:"renew_interval" yaml:"renew_interval" mapstructure:"renew_interval"`
	// MaxRetries is how many backend errors in a row one call retries; 0 means as many
	// as its context allows. A busy key is not an error.
	MaxRetries int `json:"max_retries" yaml:"max_retries" mapstructure:"max_retries"`
	// EnableReentrant lets the owner of a locked key lock it again; see OwnerContext.
	EnableReentrant bool `json:"enable_reentrant" yaml:"enable_reentrant" mapstructure:"enable_reentrant"`
	// LocalBatch lets goroutines of this Client that wait for the same key hand the
	// lock to each other without a call to the backend, at most this many times in a
	// row. Other processes get their turn after that: they may wait for LocalBatch+1
	// holds instead of one. Every holder still has its own token, greater than the
	// last. It needs a backend that can reserve tokens: redis, file, memory. 0 means
	// strict order of arrival across all processes; RequireFair needs 0.
	LocalBatch int `json:"local_batch" yaml:"local_batch" mapstructure:"local_batch"`
	// LockLogLevel is the level of the two lines that each lock logs, "lock acquired" and
	// "lock released": "info", which is the default, or "debug", for services with many locks.
	LockLogLevel string `json:"lock_log_level" yaml:"lock_log_level" mapstructure:"lock_log_level"`
	// RequireFair refuses a backend that does not grant in order of arrival.
	RequireFair bool `json:"require_fair" yaml:"require_fair" mapstructure:"require_fair"`
}

const (
	defaultTTL           = 10 * time.Second
	defaultRetryInterval = 100 * time.Millisecond
	minTTL               = 10 * time.Millisecond
	maxTTL               = 24 * time.Hour
	maxPause             = time.Second
	maxDuration          = 365 * 24 * time.Hour
	maxLocalBatch        = 1 << 16
)

// Validate returns nil if New would accept the values of c on a backend without limits of its
// own. It does not know the backend: whether one with this name is injected, whether it grants in
// order of arrival (RequireFair) and reserves tokens (LocalBatch), and its shortest TTL. See
// ValidateFor.
func (c *Config) Validate() error {
	if c == nil {
		return ErrConfigNil
	}
	if c.Prefix != "" {
		if err := checkName(c.Prefix); err != nil {
			return fmt.Errorf("%w: Prefix: %w", ErrInvalidConfig, err)
		}
	}
	ttl := c.withDefaults().DefaultTTL
	if err := checkTTL(ttl, 0); err != nil {
		return fmt.Errorf("%w: DefaultTTL: %w", ErrInvalidConfig, err)
	}
	if err := checkDuration("RetryInterval", c.RetryInterval, time.Minute); err != nil {
		return err
	}
	if c.RetryInterval > 0 && c.RetryInterval < time.Millisecond {
		return fmt.Errorf("%w: RetryInterval %v is below 1ms", ErrInvalidConfig, c.RetryInterval)
	}
	if r := c.RenewInterval; r != 0 && (r < time.Millisecond || r > ttl/3) {
		return fmt.Errorf("%w: RenewInterval %v is not between 1ms and a third of DefaultTTL (%v)", ErrInvalidConfig, r, ttl/3)
	}
	if c.LocalBatch < 0 || c.LocalBatch > maxLocalBatch {
		return fmt.Errorf("%w: LocalBatch %d is not between 0 and %d", ErrInvalidConfig, c.LocalBatch, maxLocalBatch)
	}
	if c.LocalBatch > 0 && c.RequireFair {
		return fmt.Errorf("%w: RequireFair with LocalBatch, which serves goroutines of one process before others", ErrInvalidConfig)
	}
	switch c.LockLogLevel {
	case "", "info", "debug":
	default:
		return fmt.Errorf("%w: LockLogLevel %q is not info or debug", ErrInvalidConfig, c.LockLogLevel)
	}
	if c.MaxRetries < 0 {
		return fmt.Errorf("%w: MaxRetries %d is negative", ErrInvalidConfig, c.MaxRetries)
	}
	return nil
}

func (c *Config) lockLevel() slog.Level {
	if c.LockLogLevel == "debug" {
		return slog.LevelDebug
	}
	return slog.LevelInfo
}

// ValidateFor returns nil if New would accept the values of c on a backend with these
// capabilities.
func (c *Config) ValidateFor(caps driver.Caps) error {
	if err := c.Validate(); err != nil {
		return err
	}
	full := c.withDefaults()
	return full.fits(caps)
}

// fits checks the settings that depend on the backend. c has its defaults.
func (c *Config) fits(caps driver.Caps) error {
	if c.Backend != "" && string(c.Backend) != caps.Name {
		return fmt.Errorf("%w: Backend %q, but the backend that was injected is %s", ErrInvalidConfig, c.Backend, caps.Name)
	}
	if c.RequireFair && !caps.FIFO {
		return fmt.Errorf("%w: RequireFair, but %s does not grant in order of arrival", ErrUnsupported, caps.Name)
	}
	if c.LocalBatch > 0 && !caps.TokenRange {
		return fmt.Errorf("%w: LocalBatch, but %s cannot reserve tokens", ErrUnsupported, caps.Name)
	}
	if err := checkTTL(c.DefaultTTL, caps.MinTTL); err != nil {
		return fmt.Errorf("%w: DefaultTTL: %w", ErrInvalidConfig, err)
	}
	return nil
}

// MarshalJSON writes durations as text, such as "1.5s".
func (c Config) MarshalJSON() ([]byte, error) { return durations.Marshal(c) }

// UnmarshalJSON reads durations as text, and refuses a field that is not known.
func (c *Config) UnmarshalJSON(text []byte) error { return durations.UnmarshalKnown(text, c) }

func (c *Config) withDefaults() Config {
	d := *c
	if d.DefaultTTL == 0 {
		d.DefaultTTL = defaultTTL
	}
	if d.RetryInterval == 0 {
		d.RetryInterval = defaultRetryInterval
	}
	return d
}
