package otlp

import (
	"crypto/tls"
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"golang.org/x/net/http/httpguts"

	"github.com/ceyewan/genesis/pkg/internal/durations"
	"github.com/ceyewan/genesis/pkg/telemetry"
)

const defaultTimeout = 10 * time.Second

// Config says where and what to send. The environment variables OTEL_EXPORTER_OTLP_* for endpoints,
// headers, timeouts and certificates have no effect.
type Config struct {
	// Endpoint is host:port, usually with port 4318, and with a path if the collector has one;
	// /v1/traces and /v1/metrics are appended.
	Endpoint string `json:"endpoint" yaml:"endpoint" mapstructure:"endpoint"`
	// Insecure sends without encryption, over HTTP. This includes Headers.
	Insecure bool `json:"insecure" yaml:"insecure" mapstructure:"insecure"`
	// Headers are sent with every request, and nowhere else.
	Headers Headers `json:"headers" yaml:"headers" mapstructure:"headers"`
	// Timeout limits one export, including retries. The default is 10 s.
	Timeout time.Duration `json:"timeout" yaml:"timeout" mapstructure:"timeout"`
	// Signals are what is sent: traces, metrics, or, if empty, both.
	Signals []string `json:"signals" yaml:"signals" mapstructure:"signals"`
	// TLS replaces Go's defaults, for a private certificate authority or a client certificate.
	TLS *tls.Config `json:"-" yaml:"-" mapstructure:"-"`
}

// Validate returns nil if Options would accept c. Errors are telemetry.ErrInvalidConfig, and repeat
// no value that may be secret.
func (c Config) Validate() error {
	if !c.endpointOK() {
		return fmt.Errorf("%w: otlp: Endpoint is not host:port or host:port/path", telemetry.ErrInvalidConfig)
	}
	for name, value := range c.Headers {
		if !httpguts.ValidHeaderFieldName(name) {
			return fmt.Errorf("%w: otlp: the name of a header is invalid", telemetry.ErrInvalidConfig)
		}
		if !httpguts.ValidHeaderFieldValue(value) {
			return fmt.Errorf("%w: otlp: the value of header %s is invalid", telemetry.ErrInvalidConfig, name)
		}
	}
	for _, s := range c.Signals {
		if s != "traces" && s != "metrics" {
			return fmt.Errorf("%w: otlp: signal %q is none of traces, metrics", telemetry.ErrInvalidConfig, s)
		}
	}
	if c.Timeout < 0 {
		return fmt.Errorf("%w: otlp: Timeout %v is negative", telemetry.ErrInvalidConfig, c.Timeout)
	}
	if c.Insecure && c.TLS != nil {
		return fmt.Errorf("%w: otlp: TLS is set though Insecure is", telemetry.ErrInvalidConfig)
	}
	return nil
}

// endpointOK refuses everything beyond a host and a path: a scheme, which Insecure decides, and a
// user or a query, which belong in Headers.
func (c Config) endpointOK() bool {
	u, err := url.Parse("http://" + c.Endpoint)
	return err == nil && u.Hostname() != "" && !strings.Contains(c.Endpoint, "://") &&
		u.User == nil && u.RawQuery == "" && !u.ForceQuery && u.Fragment == ""
}

func (c Config) url(path string) string {
	scheme := "https://"
	if c.Insecure {
		scheme = "http://"
	}
	return scheme + strings.TrimRight(c.Endpoint, "/") + path
}

func (c Config) sends(signal string) bool {
	return len(c.Signals) == 0 || slices.Contains(c.Signals, signal)
}

// MarshalJSON writes durations as text, such as "1.5s", and no values of headers.
func (c Config) MarshalJSON() ([]byte, error) { return durations.Marshal(c) }

// UnmarshalJSON reads durations as text, and refuses a field that is not known.
func (c *Config) UnmarshalJSON(text []byte) error { return durations.UnmarshalKnown(text, c) }

// Headers often contain a secret. Their values appear in no output of fmt, log/slog or an encoder.
type Headers map[string]string

// Format implements fmt.Formatter.
func (h Headers) Format(f fmt.State, _ rune) { _, _ = fmt.Fprint(f, h.hidden()) }

// MarshalJSON implements json.Marshaler.
func (h Headers) MarshalJSON() ([]byte, error) { return json.Marshal(h.hidden()) }

// MarshalYAML implements the Marshaler of the yaml packages.
func (h Headers) MarshalYAML() (any, error) { return h.hidden(), nil }

func (h Headers) hidden() map[string]string {
	m := make(map[string]string, len(h))
	for name := range h {
		m[name] = "***"
	}
	return m
}
