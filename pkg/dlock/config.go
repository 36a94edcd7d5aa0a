package dlock

import (
	"fmt"
	"time"
)

// Config is the data of a Client; collaborators come as Options. The zero value
// is usable: zero fields mean the defaults named below.
type Config struct {
	// Backend is redis, etcd, redlock, file or memory. A constructor accepts
	// the matching name or "".
	Backend string `json:"backend" yaml:"backend" mapstructure:"backend"`
	// Prefix stands before every key in the store.
	Prefix string `json:"prefix" yaml:"prefix" mapstructure:"prefix"`
	// DefaultTTL is the lease of a lock that is taken without WithTTL: 10 s.
	DefaultTTL time.Duration `json:"default_ttl" yaml:"default_ttl" mapstructure:"default_ttl"`
	// RetryInterval is the first pause after a backend error: 100 ms. Pauses
	// double up to one second, with jitter.
	RetryInterval time.Duration `json:"retry_interval" yaml:"retry_interval" mapstructure:"retry_interval"`
	// RenewInterval is how often a held lock is renewed. It is never above a
	// third of the lock's TTL, which is also the default.
	RenewInterval time.Duration `json:"renew_interval" yaml:"renew_interval" mapstructure:"renew_interval"`
	// MaxRetries is how many backend errors in a row one call endures; 0 means
	// as many as its context allows. A busy key is not an error.
	MaxRetries int `json:"max_retries" yaml:"max_retries" mapstructure:"max_retries"`
	// EnableReentrant lets the owner of a keyed lock take it again; see
	// OwnerContext.
	EnableReentrant bool `json:"enable_reentrant" yaml:"enable_reentrant" mapstructure:"enable_reentrant"`
	// LocalBatch lets goroutines of this Client that wait for the same key hand the
	// lock to each other, without asking the backend, at most this many times in a
	// row, before others have their turn: another process may wait for LocalBatch+1
	// holds instead of one. Every holder still has a token of its own, greater than
	// the last. It needs a backend that can reserve tokens: redis, file, memory. 0
	// is strict order of arrival across all processes, and RequireFair needs it.
	LocalBatch int `json:"local_batch" yaml:"local_batch" mapstructure:"local_batch"`
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

// Validate returns nil if New would accept the values of c. The limits of the
// backend itself are known only to New.
func (c *Config) Validate() error {
	if c == nil {
		return ErrConfigNil
	}
	switch c.Backend {
	case "", "redis", "etcd", "redlock", "file", "memory":
	default:
		return fmt.Errorf("%w: Backend %q is none of redis, etcd, redlock, file, memory", ErrInvalidConfig, c.Backend)
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
	if err := checkSpan("RetryInterval", c.RetryInterval, time.Minute); err != nil {
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
	if c.MaxRetries < 0 {
		return fmt.Errorf("%w: MaxRetries %d is negative", ErrInvalidConfig, c.MaxRetries)
	}
	return nil
}

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
