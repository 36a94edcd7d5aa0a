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

	"github.com/ceyewan/genesis/pkg/telemetry"
)

const defaultTimeout = 10 * time.Second

// Config says where to send, and what. The variables OTEL_EXPORTER_OTLP_* of the
// environment for endpoints, headers, timeouts and certificates change nothing.
type Config struct {
	// Endpoint is host:port, usually with port 4318, and with a path if the
	// collector has one; /v1/traces and /v1/metrics are appended.
	Endpoint string `json:"endpoint" yaml:"endpoint" mapstructure:"endpoint"`
	// Insecure sends in the clear, by HTTP. Headers too.
	Insecure bool `json:"insecure" yaml:"insecure" mapstructure:"insecure"`
	// Headers go with every request, and nowhere else.
	Headers Headers `json:"headers" yaml:"headers" mapstructure:"headers"`
	// Timeout bounds one export, retries included: 10 s.
	Timeout time.Duration `json:"timeout" yaml:"timeout" mapstructure:"timeout"`
	// Signals are what is sent: traces, metrics, or, if empty, both.
	Signals []string `json:"signals" yaml:"signals" mapstructure:"signals"`
	// TLS replaces the defaults of Go, for a private authority or a certificate
	// of one's own.
	TLS *tls.Config `json:"-" yaml:"-" mapstructure:"-"`
}

// Validate returns nil if Options would accept c. Errors are
// telemetry.ErrInvalidConfig, and repeat nothing that may be secret.
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

// endpointOK refuses all that is more than a host and a path: a scheme, which
// Insecure decides, and a user or a query, which belong in Headers.
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

// Headers often hold a secret. Their values appear in no output of fmt, log/slog
// or an encoder.
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
