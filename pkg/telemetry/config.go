package telemetry

import (
	"crypto/rand"
	"fmt"
	"time"
	"unicode/utf8"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/resource"

	"github.com/ceyewan/genesis/pkg/internal/durations"
	"github.com/ceyewan/genesis/pkg/xerrors"
)

// ErrInvalidConfig is wrapped by every error about a Config or an Option.
var ErrInvalidConfig = xerrors.NewOf(xerrors.ErrInvalidConfig, "invalid_config", "invalid telemetry configuration")

// Config configures a Telemetry. Collaborators are passed as Options.
type Config struct {
	// ServiceName is required. Further attributes of the service come from the
	// environment variable OTEL_RESOURCE_ATTRIBUTES.
	ServiceName string `json:"service_name" yaml:"service_name" mapstructure:"service_name"`
	// ServiceVersion may be empty.
	ServiceVersion string `json:"service_version" yaml:"service_version" mapstructure:"service_version"`
	// RuntimeMetrics adds the metrics of the Go runtime and of the process to Handler.
	RuntimeMetrics bool `json:"runtime_metrics" yaml:"runtime_metrics" mapstructure:"runtime_metrics"`
	// SampleRatio is the share of traces to record, from 0 to 1, if the caller has not decided. 0
	// leaves the decision to OTEL_TRACES_SAMPLER, whose default is to record all of them.
	SampleRatio float64 `json:"sample_ratio" yaml:"sample_ratio" mapstructure:"sample_ratio"`
	// ExportInterval is how often metrics are sent to metric exporters. The default is 60 s.
	// Prometheus scrapes at its own interval.
	ExportInterval time.Duration `json:"export_interval" yaml:"export_interval" mapstructure:"export_interval"`
}

// Validate returns nil if New would accept c.
func (c Config) Validate() error {
	switch {
	case c.ServiceName == "":
		return fmt.Errorf("%w: ServiceName is empty", ErrInvalidConfig)
	case !utf8.ValidString(c.ServiceName):
		return fmt.Errorf("%w: ServiceName %q is not UTF-8", ErrInvalidConfig, c.ServiceName)
	case !utf8.ValidString(c.ServiceVersion):
		return fmt.Errorf("%w: ServiceVersion %q is not UTF-8", ErrInvalidConfig, c.ServiceVersion)
	case !(c.SampleRatio >= 0 && c.SampleRatio <= 1): // NaN is neither
		return fmt.Errorf("%w: SampleRatio %v is not between 0 and 1", ErrInvalidConfig, c.SampleRatio)
	case c.ExportInterval < 0:
		return fmt.Errorf("%w: ExportInterval %v is negative", ErrInvalidConfig, c.ExportInterval)
	}
	return nil
}

// MarshalJSON writes durations as text, such as "1.5s".
func (c Config) MarshalJSON() ([]byte, error) { return durations.Marshal(c) }

// UnmarshalJSON reads durations as text, and refuses a field that is not known.
func (c *Config) UnmarshalJSON(text []byte) error { return durations.UnmarshalKnown(text, c) }

// resource identifies the service. The random instance ID, which the environment may override,
// keeps the counters of two processes apart at a collector.
func (c Config) resource() (*resource.Resource, error) {
	instance := resource.NewSchemaless(attribute.String("service.instance.id", rand.Text()))
	own := []attribute.KeyValue{attribute.String("service.name", c.ServiceName)}
	if c.ServiceVersion != "" {
		own = append(own, attribute.String("service.version", c.ServiceVersion))
	}
	res, err := resource.Merge(instance, resource.Default())
	if err != nil {
		return nil, err
	}
	return resource.Merge(res, resource.NewSchemaless(own...))
}
