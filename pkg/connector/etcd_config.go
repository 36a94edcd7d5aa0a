package connector

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/ceyewan/genesis/pkg/internal/durations"
)

// EtcdConfig says where etcd is and how to reach it. Zero fields mean the defaults named below. Its
// output in any format hides the password.
type EtcdConfig struct {
	// Endpoints are all members: host:port, or with http:// or https:// in front, or unix:// or
	// unixs:// and the absolute path of a socket, the same for all. https or unixs without TLS means TLS
	// with the system's certificate authorities. DiscoverEtcd finds them by DNS.
	Endpoints []string `json:"endpoints" yaml:"endpoints" mapstructure:"endpoints" env:"ENDPOINTS"`
	// Username and Password are set together or not at all.
	Username string `json:"username" yaml:"username" mapstructure:"username" env:"USERNAME"`
	Password string `json:"password" yaml:"password" mapstructure:"password" env:"PASSWORD"`
	// TLS is nil for no TLS.
	TLS *TLSConfig `json:"tls,omitempty" yaml:"tls,omitempty" mapstructure:"tls" env:",init" envPrefix:"TLS_"`
	// DialTimeout limits a new connection, including its handshake. The default is 5 s.
	DialTimeout time.Duration `json:"dial_timeout" yaml:"dial_timeout" mapstructure:"dial_timeout" env:"DIAL_TIMEOUT"`
	// DialKeepAliveTime is the time of silence after which a member is pinged. The default is 5 s,
	// which gRPC raises to 10 s, its minimum.
	DialKeepAliveTime time.Duration `json:"dial_keep_alive_time" yaml:"dial_keep_alive_time" mapstructure:"dial_keep_alive_time" env:"DIAL_KEEP_ALIVE_TIME"`
	// DialKeepAliveTimeout is how long the answer to a ping may take. The default is 3 s.
	DialKeepAliveTimeout time.Duration `json:"dial_keep_alive_timeout" yaml:"dial_keep_alive_timeout" mapstructure:"dial_keep_alive_timeout" env:"DIAL_KEEP_ALIVE_TIMEOUT"`
	// ConnectTimeout limits Connect and HealthCheck. The default is 5 s.
	ConnectTimeout time.Duration `json:"connect_timeout" yaml:"connect_timeout" mapstructure:"connect_timeout" env:"CONNECT_TIMEOUT"`
	// AutoSyncInterval is how often the client asks the cluster for its members, and uses the addresses
	// that they advertise from then on. 0 means never.
	AutoSyncInterval time.Duration `json:"auto_sync_interval" yaml:"auto_sync_interval" mapstructure:"auto_sync_interval" env:"AUTO_SYNC_INTERVAL"`
}

func (c *EtcdConfig) withDefaults() EtcdConfig {
	d := *c
	d.Endpoints = slices.Clone(c.Endpoints)
	d.DialTimeout = or(c.DialTimeout, defaultTimeout)
	d.DialKeepAliveTime = or(c.DialKeepAliveTime, 5*time.Second)
	d.DialKeepAliveTimeout = or(c.DialKeepAliveTimeout, 3*time.Second)
	d.ConnectTimeout = or(c.ConnectTimeout, defaultTimeout)
	return d
}

// Validate returns nil if NewEtcd would accept the values of c. Only NewEtcd reads the files.
func (c *EtcdConfig) Validate() error {
	if c == nil {
		return ErrConfigNil
	}
	if c.Password == hidden {
		return invalid("Password", "is %s, which stands for one that was not shown", hidden)
	}
	if err := c.checkEndpoints(); err != nil {
		return err
	}
	if (c.Username == "") != (c.Password == "") {
		return invalid("Username", "and Password need each other")
	}
	if err := c.TLS.validate(); err != nil {
		return err
	}
	return checkSpans(
		span{"DialTimeout", c.DialTimeout}, span{"ConnectTimeout", c.ConnectTimeout},
		span{"DialKeepAliveTime", c.DialKeepAliveTime}, span{"DialKeepAliveTimeout", c.DialKeepAliveTimeout},
		span{"AutoSyncInterval", c.AutoSyncInterval},
	)
}

// checkEndpoints also refuses endpoints for which the client would silently weaken the
// configuration: it drops TLS if the first endpoint says http.
func (c *EtcdConfig) checkEndpoints() error {
	if len(c.Endpoints) == 0 {
		return invalid("Endpoints", "is empty")
	}
	first, _ := splitEndpoint(c.Endpoints[0])
	for i, e := range c.Endpoints {
		field := fmt.Sprintf("Endpoints[%d]", i)
		scheme, addr := splitEndpoint(e)
		if err := checkEndpoint(scheme, addr); err != nil {
			return invalid(field, "%w", err)
		}
		switch {
		case scheme != first:
			return invalid(field, "has another scheme than the first one")
		case (scheme == "http" || scheme == "unix") && c.TLS.on():
			return invalid(field, "is %s, though TLS is set", scheme)
		}
	}
	return nil
}

func checkEndpoint(scheme, addr string) error {
	switch scheme {
	case "", "http", "https":
		return checkAddr(addr)
	case "unix", "unixs":
		if !strings.HasPrefix(addr, "/") || strings.ContainsAny(addr, "?#\x00") {
			return errors.New("is not the absolute path of a socket")
		}
		return nil
	}
	return errors.New("is neither http nor https, nor unix nor unixs")
}

func splitEndpoint(e string) (scheme, addr string) {
	if scheme, addr, ok := strings.Cut(e, "://"); ok {
		return scheme, addr
	}
	return "", e
}

// addrs returns the endpoints without their scheme.
func (c *EtcdConfig) addrs() []string {
	var all []string
	for _, e := range c.Endpoints {
		_, addr := splitEndpoint(e)
		all = append(all, addr)
	}
	return all
}

// secure reports whether connections must be encrypted.
func (c *EtcdConfig) secure() bool {
	scheme, _ := splitEndpoint(c.Endpoints[0])
	return c.TLS.on() || scheme == "https" || scheme == "unixs"
}

type shownEtcd EtcdConfig // has no methods

func (c EtcdConfig) shown() shownEtcd {
	c.Endpoints, c.Password = hideUsers(c.Endpoints), hide(c.Password)
	return shownEtcd(c)
}

// String hides the password, as do all methods below.
func (c EtcdConfig) String() string { return fmt.Sprintf("%+v", c.shown()) }

// GoString is String.
func (c EtcdConfig) GoString() string { return c.String() }

// LogValue implements slog.LogValuer.
func (c EtcdConfig) LogValue() slog.Value { return slog.AnyValue(c.shown()) }

// MarshalJSON is for display, not for storage. Durations are text, such as "1.5s".
func (c EtcdConfig) MarshalJSON() ([]byte, error) { return durations.Marshal(c.shown()) }

// UnmarshalJSON reads durations as text, and refuses a field that is not known.
func (c *EtcdConfig) UnmarshalJSON(text []byte) error { return durations.UnmarshalKnown(text, c) }

// MarshalYAML is for display, not for storage.
func (c EtcdConfig) MarshalYAML() (any, error) { return c.shown(), nil }
