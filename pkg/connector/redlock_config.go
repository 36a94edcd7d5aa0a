package connector

import (
	"fmt"
	"log/slog"
	"time"

	"github.com/ceyewan/genesis/pkg/internal/durations"
)

// RedlockConfig says where some independent Redis servers are. All fields except Addrs apply to
// every server; zero fields mean the defaults of RedisConfig. Its output in any format hides the
// password.
type RedlockConfig struct {
	// Addrs are the servers, host:port each: three or a greater odd number, without duplicates.
	// Five is a good number.
	Addrs []string `json:"addrs" yaml:"addrs" mapstructure:"addrs" env:"ADDRS"`
	// Username is an ACL user; without it, Password is the server's password.
	Username string `json:"username" yaml:"username" mapstructure:"username" env:"USERNAME"`
	Password string `json:"password" yaml:"password" mapstructure:"password" env:"PASSWORD"`
	// DB is the database.
	DB int `json:"db" yaml:"db" mapstructure:"db" env:"DB"`
	// TLS applies to all servers; nil means no TLS.
	TLS *TLSConfig `json:"tls,omitempty" yaml:"tls,omitempty" mapstructure:"tls" env:",init" envPrefix:"TLS_"`
	// PoolSize is how many connections are kept for each server. The default is 10 for each CPU.
	// Locks have a separate pool of the same size, but at least 16.
	PoolSize int `json:"pool_size" yaml:"pool_size" mapstructure:"pool_size" env:"POOL_SIZE"`
	// DialTimeout limits a new connection, including its handshake. The default is 5 s.
	DialTimeout time.Duration `json:"dial_timeout" yaml:"dial_timeout" mapstructure:"dial_timeout" env:"DIAL_TIMEOUT"`
	// ConnectTimeout limits Connect and HealthCheck. The default is 5 s.
	ConnectTimeout time.Duration `json:"connect_timeout" yaml:"connect_timeout" mapstructure:"connect_timeout" env:"CONNECT_TIMEOUT"`
}

// node returns the configuration of one of the servers.
func (c *RedlockConfig) node(addr string) *RedisConfig {
	return &RedisConfig{
		Addr: addr, Username: c.Username, Password: c.Password, DB: c.DB, TLS: c.TLS, PoolSize: c.PoolSize,
		DialTimeout: c.DialTimeout, ConnectTimeout: c.ConnectTimeout,
	}
}

// Validate returns nil if NewRedlock would accept the values of c. Only NewRedlock reads the files.
func (c *RedlockConfig) Validate() error {
	if c == nil {
		return ErrConfigNil
	}
	if n := len(c.Addrs); n < 3 || n%2 == 0 {
		return invalid("Addrs", "are %d, and must be an odd number of at least 3", n)
	}
	seen := map[string]int{}
	for i, a := range c.Addrs {
		if err := checkAddr(a); err != nil {
			return invalid(fmt.Sprintf("Addrs[%d]", i), "%w", err)
		}
		if j, again := seen[a]; again {
			return invalid(fmt.Sprintf("Addrs[%d]", i), "is the same as Addrs[%d]", j)
		}
		seen[a] = i
	}
	return c.node(c.Addrs[0]).Validate()
}

type shownRedlock RedlockConfig // has no methods

func (c RedlockConfig) shown() shownRedlock {
	c.Addrs, c.Password = hideUsers(c.Addrs), hide(c.Password)
	return shownRedlock(c)
}

// String hides the password, as do all methods below.
func (c RedlockConfig) String() string { return fmt.Sprintf("%+v", c.shown()) }

// GoString is String.
func (c RedlockConfig) GoString() string { return c.String() }

// LogValue implements slog.LogValuer.
func (c RedlockConfig) LogValue() slog.Value { return slog.AnyValue(c.shown()) }

// MarshalJSON is for display, not for storage. Durations are text, such as "1.5s".
func (c RedlockConfig) MarshalJSON() ([]byte, error) { return durations.Marshal(c.shown()) }

// UnmarshalJSON reads durations as text, and refuses a field that is not known.
func (c *RedlockConfig) UnmarshalJSON(text []byte) error { return durations.UnmarshalKnown(text, c) }

// MarshalYAML is for display, not for storage.
func (c RedlockConfig) MarshalYAML() (any, error) { return c.shown(), nil }
