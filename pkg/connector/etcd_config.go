package connector

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"
)

// EtcdConfig says where etcd is and how to reach it. Zero fields mean the defaults
// named below. Shown in any form, it hides its password.
type EtcdConfig struct {
	// Endpoints are all members: host:port, or with http:// or https:// before it,
	// the same for all. https without TLS is TLS with the system's authorities.
	Endpoints []string `json:"endpoints" yaml:"endpoints" mapstructure:"endpoints" env:"ENDPOINTS"`
	// Username and Password come together.
	Username string `json:"username" yaml:"username" mapstructure:"username" env:"USERNAME"`
	Password string `json:"password" yaml:"password" mapstructure:"password" env:"PASSWORD"`
	// TLS is nil for none.
	TLS *TLSConfig `json:"tls,omitempty" yaml:"tls,omitempty" mapstructure:"tls" env:",init" envPrefix:"TLS_"`
	// DialTimeout bounds a new connection, with its handshake: 5 s.
	DialTimeout time.Duration `json:"dial_timeout" yaml:"dial_timeout" mapstructure:"dial_timeout" env:"DIAL_TIMEOUT"`
	// DialKeepAliveTime is after how much silence a member is pinged: 5 s, of which
	// gRPC makes 10 s, its minimum.
	DialKeepAliveTime time.Duration `json:"dial_keep_alive_time" yaml:"dial_keep_alive_time" mapstructure:"dial_keep_alive_time" env:"DIAL_KEEP_ALIVE_TIME"`
	// DialKeepAliveTimeout is how long the answer may take: 3 s.
	DialKeepAliveTimeout time.Duration `json:"dial_keep_alive_timeout" yaml:"dial_keep_alive_timeout" mapstructure:"dial_keep_alive_timeout" env:"DIAL_KEEP_ALIVE_TIMEOUT"`
	// ConnectTimeout bounds Connect and HealthCheck: 5 s.
	ConnectTimeout time.Duration `json:"connect_timeout" yaml:"connect_timeout" mapstructure:"connect_timeout" env:"CONNECT_TIMEOUT"`
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

// Validate returns nil if NewEtcd would accept the values of c. Files are read only
// by NewEtcd.
func (c *EtcdConfig) Validate() error {
	if c == nil {
		return ErrConfigNil
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
	)
}

// checkEndpoints also refuses what the client would take for less than is meant: it
// drops TLS where the first endpoint says http.
func (c *EtcdConfig) checkEndpoints() error {
	if len(c.Endpoints) == 0 {
		return invalid("Endpoints", "is empty")
	}
	first, _ := splitEndpoint(c.Endpoints[0])
	for i, e := range c.Endpoints {
		field := fmt.Sprintf("Endpoints[%d]", i)
		scheme, addr := splitEndpoint(e)
		if err := checkAddr(addr); err != nil {
			return invalid(field, "%w", err)
		}
		switch {
		case scheme != "" && scheme != "http" && scheme != "https":
			return invalid(field, "is neither http nor https")
		case scheme != first:
			return invalid(field, "has another scheme than the first one")
		case scheme == "http" && c.TLS.on():
			return invalid(field, "is http, though TLS is set")
		}
	}
	return nil
}

func splitEndpoint(e string) (scheme, addr string) {
	if scheme, addr, ok := strings.Cut(e, "://"); ok {
		return scheme, addr
	}
	return "", e
}

// addrs are the endpoints without their scheme.
func (c *EtcdConfig) addrs() []string {
	var all []string
	for _, e := range c.Endpoints {
		_, addr := splitEndpoint(e)
		all = append(all, addr)
	}
	return all
}

// secure says whether connections are to be encrypted.
func (c *EtcdConfig) secure() bool {
	return c.TLS.on() || strings.HasPrefix(c.Endpoints[0], "https:")
}

type shownEtcd EtcdConfig // has no methods

func (c EtcdConfig) shown() shownEtcd {
	c.Endpoints, c.Password = hideUsers(c.Endpoints), hide(c.Password)
	return shownEtcd(c)
}

// String hides the password, as do all the forms below.
func (c EtcdConfig) String() string { return fmt.Sprintf("%+v", c.shown()) }

// GoString is String.
func (c EtcdConfig) GoString() string { return c.String() }

// LogValue is what slog shows.
func (c EtcdConfig) LogValue() slog.Value { return slog.AnyValue(c.shown()) }

// MarshalJSON is for showing, not for storing.
func (c EtcdConfig) MarshalJSON() ([]byte, error) { return json.Marshal(c.shown()) }

// MarshalYAML is for showing, not for storing.
func (c EtcdConfig) MarshalYAML() (any, error) { return c.shown(), nil }
