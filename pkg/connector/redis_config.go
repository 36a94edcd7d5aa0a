package connector

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/ceyewan/genesis/pkg/internal/durations"
)

// RedisConfig says where Redis is and how to reach it. Zero fields mean the defaults named below.
// Its output in any format hides the passwords.
type RedisConfig struct {
	// Addr is a single server: host:port, or the path of a unix socket.
	Addr string `json:"addr" yaml:"addr" mapstructure:"addr" env:"ADDR"`
	// Addrs are sentinels if MasterName is set, and otherwise some nodes of a cluster. A single
	// address is a single server, unless Cluster is set.
	Addrs []string `json:"addrs" yaml:"addrs" mapstructure:"addrs" env:"ADDRS"`
	// MasterName is the name of the master that the sentinels monitor.
	MasterName string `json:"master_name" yaml:"master_name" mapstructure:"master_name" env:"MASTER_NAME"`
	// Cluster says that the server is a cluster although only one address is given.
	Cluster bool `json:"cluster" yaml:"cluster" mapstructure:"cluster" env:"CLUSTER"`
	// Username is an ACL user; without it, Password is the server's password.
	Username string `json:"username" yaml:"username" mapstructure:"username" env:"USERNAME"`
	Password string `json:"password" yaml:"password" mapstructure:"password" env:"PASSWORD"`
	// SentinelUsername and SentinelPassword are for the sentinels themselves.
	SentinelUsername string `json:"sentinel_username" yaml:"sentinel_username" mapstructure:"sentinel_username" env:"SENTINEL_USERNAME"`
	SentinelPassword string `json:"sentinel_password" yaml:"sentinel_password" mapstructure:"sentinel_password" env:"SENTINEL_PASSWORD"`
	// DB is the database; a cluster has only 0.
	DB int `json:"db" yaml:"db" mapstructure:"db" env:"DB"`
	// TLS applies to servers and sentinels; nil means no TLS.
	TLS *TLSConfig `json:"tls,omitempty" yaml:"tls,omitempty" mapstructure:"tls" env:",init" envPrefix:"TLS_"`
	// PoolSize is how many connections are kept for each server. The default is 10 for each CPU, on
	// a cluster 5; the maximum is 1,048,576. Locks have a separate pool of the same size, but at
	// least 16.
	PoolSize int `json:"pool_size" yaml:"pool_size" mapstructure:"pool_size" env:"POOL_SIZE"`
	// MinIdleConns is how many connections are opened in advance, in the background, when the
	// client is first used. The default is none.
	MinIdleConns int `json:"min_idle_conns" yaml:"min_idle_conns" mapstructure:"min_idle_conns" env:"MIN_IDLE_CONNS"`
	// MaxRetries is how often the client repeats a command that got no answer and may have been
	// carried out. The default is never. (On a cluster the client may try three nodes in turn,
	// regardless of this value.) Lock commands are never repeated.
	MaxRetries int `json:"max_retries" yaml:"max_retries" mapstructure:"max_retries" env:"MAX_RETRIES"`
	// DialTimeout limits a new connection, including its handshake. The default is 5 s.
	DialTimeout time.Duration `json:"dial_timeout" yaml:"dial_timeout" mapstructure:"dial_timeout" env:"DIAL_TIMEOUT"`
	// ReadTimeout and WriteTimeout limit a command that has no earlier deadline of its own. The
	// default is 5 s.
	ReadTimeout  time.Duration `json:"read_timeout" yaml:"read_timeout" mapstructure:"read_timeout" env:"READ_TIMEOUT"`
	WriteTimeout time.Duration `json:"write_timeout" yaml:"write_timeout" mapstructure:"write_timeout" env:"WRITE_TIMEOUT"`
	// ConnectTimeout limits Connect and HealthCheck. The default is 5 s.
	ConnectTimeout time.Duration `json:"connect_timeout" yaml:"connect_timeout" mapstructure:"connect_timeout" env:"CONNECT_TIMEOUT"`
}

const defaultTimeout = 5 * time.Second

// maxPoolSize is far more connections than a server accepts. The client allocates memory for that
// many, and would panic or use up all memory with more.
const maxPoolSize = 1 << 20

func (c *RedisConfig) withDefaults() RedisConfig {
	d := *c
	d.Addrs = slices.Clone(c.Addrs)
	if d.Addr != "" {
		d.Addrs = []string{d.Addr}
	}
	d.Cluster = c.Cluster || len(d.Addrs) > 1 && c.MasterName == ""
	d.DialTimeout = or(c.DialTimeout, defaultTimeout)
	d.ReadTimeout = or(c.ReadTimeout, defaultTimeout)
	d.WriteTimeout = or(c.WriteTimeout, defaultTimeout)
	d.ConnectTimeout = or(c.ConnectTimeout, defaultTimeout)
	return d
}

// Validate returns nil if NewRedis would accept the values of c. Only NewRedis reads the files.
func (c *RedisConfig) Validate() error {
	if c == nil {
		return ErrConfigNil
	}
	for _, check := range []func() error{c.checkAddrs, c.checkTopology, c.checkUsers, c.checkNumbers, c.TLS.validate} {
		if err := check(); err != nil {
			return err
		}
	}
	return checkSpans(
		span{"DialTimeout", c.DialTimeout}, span{"ReadTimeout", c.ReadTimeout},
		span{"WriteTimeout", c.WriteTimeout}, span{"ConnectTimeout", c.ConnectTimeout},
	)
}

func (c *RedisConfig) checkAddrs() error {
	switch {
	case c.Addr == "" && len(c.Addrs) == 0:
		return invalid("Addr", "or Addrs is needed")
	case c.Addr != "" && len(c.Addrs) > 0:
		return invalid("Addr", "and Addrs exclude each other")
	case strings.HasPrefix(c.Addr, "/"):
		return nil
	case c.Addr != "":
		if err := checkAddr(c.Addr); err != nil {
			return invalid("Addr", "%w", err)
		}
	}
	for i, a := range c.Addrs {
		if err := checkAddr(a); err != nil {
			return invalid(fmt.Sprintf("Addrs[%d]", i), "%w", err)
		}
	}
	return nil
}

func (c *RedisConfig) checkTopology() error {
	unix := strings.HasPrefix(c.Addr, "/")
	switch d := c.withDefaults(); {
	case c.MasterName != "" && c.Cluster:
		return invalid("MasterName", "and Cluster exclude each other")
	case c.MasterName != "" && c.Addr != "":
		return invalid("MasterName", "needs the sentinels in Addrs, not Addr")
	case unix && (d.Cluster || c.TLS.on()):
		return invalid("Addr", "is a unix socket, which has neither cluster nor TLS")
	case d.Cluster && c.DB != 0:
		return invalid("DB", "%d does not exist on a cluster", c.DB)
	}
	return nil
}

// checkUsers refuses settings that the client would silently ignore.
func (c *RedisConfig) checkUsers() error {
	switch {
	case c.Password == hidden:
		return invalid("Password", "is %s, which stands for one that was not shown", hidden)
	case c.SentinelPassword == hidden:
		return invalid("SentinelPassword", "is %s, which stands for one that was not shown", hidden)
	case c.Username != "" && c.Password == "":
		return invalid("Username", "needs Password")
	case c.SentinelUsername != "" && c.SentinelPassword == "":
		return invalid("SentinelUsername", "needs SentinelPassword")
	case c.SentinelPassword != "" && c.MasterName == "":
		return invalid("SentinelPassword", "needs MasterName")
	}
	return nil
}

func (c *RedisConfig) checkNumbers() error {
	switch {
	case c.DB < 0:
		return invalid("DB", "%d is negative", c.DB)
	case c.PoolSize < 0:
		return invalid("PoolSize", "%d is negative", c.PoolSize)
	case c.PoolSize > maxPoolSize:
		return invalid("PoolSize", "%d is above %d", c.PoolSize, maxPoolSize)
	case c.MinIdleConns < 0:
		return invalid("MinIdleConns", "%d is negative", c.MinIdleConns)
	case c.MinIdleConns > maxPoolSize:
		return invalid("MinIdleConns", "%d is above %d", c.MinIdleConns, maxPoolSize)
	case c.PoolSize > 0 && c.MinIdleConns > c.PoolSize:
		return invalid("MinIdleConns", "%d is above PoolSize %d", c.MinIdleConns, c.PoolSize)
	case c.MaxRetries < 0:
		return invalid("MaxRetries", "%d is negative", c.MaxRetries)
	}
	return nil
}

type shownRedis RedisConfig // has no methods

func (c RedisConfig) shown() shownRedis {
	c.Addr, c.Addrs = hideUser(c.Addr), hideUsers(c.Addrs)
	c.Password, c.SentinelPassword = hide(c.Password), hide(c.SentinelPassword)
	return shownRedis(c)
}

// String hides the passwords, as do all methods below.
func (c RedisConfig) String() string { return fmt.Sprintf("%+v", c.shown()) }

// GoString is String.
func (c RedisConfig) GoString() string { return c.String() }

// LogValue implements slog.LogValuer.
func (c RedisConfig) LogValue() slog.Value { return slog.AnyValue(c.shown()) }

// MarshalJSON is for display, not for storage. Durations are text, such as "1.5s".
func (c RedisConfig) MarshalJSON() ([]byte, error) { return durations.Marshal(c.shown()) }

// UnmarshalJSON reads durations as text, and refuses a field that is not known.
func (c *RedisConfig) UnmarshalJSON(text []byte) error { return durations.UnmarshalKnown(text, c) }

// MarshalYAML is for display, not for storage.
func (c RedisConfig) MarshalYAML() (any, error) { return c.shown(), nil }
