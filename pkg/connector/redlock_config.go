package connector

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"time"
)

// RedlockConfig says where some independent Redis servers are. What is not an address
// is the same for all of them; zero fields mean the defaults of RedisConfig. Shown in
// any form, it hides its password.
type RedlockConfig struct {
	// Addrs are the servers, host:port each: three or a greater odd number, none of
	// them twice. Five is a good number.
	Addrs []string `json:"addrs" yaml:"addrs" mapstructure:"addrs" env:"ADDRS"`
	// Username is a user of the ACL; without it the password is the server's.
	Username string `json:"username" yaml:"username" mapstructure:"username" env:"USERNAME"`
	Password string `json:"password" yaml:"password" mapstructure:"password" env:"PASSWORD"`
	// DB is the database.
	DB int `json:"db" yaml:"db" mapstructure:"db" env:"DB"`
	// TLS is for all servers; nil is none.
	TLS *TLSConfig `json:"tls,omitempty" yaml:"tls,omitempty" mapstructure:"tls" env:",init" envPrefix:"TLS_"`
	// PoolSize is how many connections are kept for each server: 10 for each CPU.
	// Locks have as many of their own, and at least 16.
	PoolSize int `json:"pool_size" yaml:"pool_size" mapstructure:"pool_size" env:"POOL_SIZE"`
	// DialTimeout bounds a new connection, with its handshake: 5 s.
	DialTimeout time.Duration `json:"dial_timeout" yaml:"dial_timeout" mapstructure:"dial_timeout" env:"DIAL_TIMEOUT"`
	// ConnectTimeout bounds Connect and HealthCheck: 5 s.
	ConnectTimeout time.Duration `json:"connect_timeout" yaml:"connect_timeout" mapstructure:"connect_timeout" env:"CONNECT_TIMEOUT"`
}

// node is the configuration of one of the servers.
func (c *RedlockConfig) node(addr string) *RedisConfig {
	return &RedisConfig{
		Addr: addr, Username: c.Username, Password: c.Password, DB: c.DB, TLS: c.TLS, PoolSize: c.PoolSize,
		DialTimeout: c.DialTimeout, ConnectTimeout: c.ConnectTimeout,
	}
}

// Validate returns nil if NewRedlock would accept the values of c. Files are read only
// by NewRedlock.
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

// String hides the password, as do all the forms below.
func (c RedlockConfig) String() string { return fmt.Sprintf("%+v", c.shown()) }

// GoString is String.
func (c RedlockConfig) GoString() string { return c.String() }

// LogValue is what slog shows.
func (c RedlockConfig) LogValue() slog.Value { return slog.AnyValue(c.shown()) }

// MarshalJSON is for showing, not for storing.
func (c RedlockConfig) MarshalJSON() ([]byte, error) { return json.Marshal(c.shown()) }

// MarshalYAML is for showing, not for storing.
func (c RedlockConfig) MarshalYAML() (any, error) { return c.shown(), nil }
