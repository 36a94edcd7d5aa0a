// Package otlp sends the metrics of dlock run to an OpenTelemetry collector.
package otlp

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"regexp"
	"strings"

	"github.com/go-logr/logr"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetrichttp"
	"go.opentelemetry.io/otel/sdk/instrumentation"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/sdk/resource"

	"github.com/ceyewan/genesis/internal/cli"
)

// Send sends the metrics of a run over HTTP, as the variables OTEL_EXPORTER_OTLP_* say. Without an endpoint, or if they ask
// for another protocol or for no metrics, it does nothing.
func Send(ctx context.Context, m cli.RunMetrics) error {
	name, endpoint := variable("ENDPOINT")
	_, protocol := variable("PROTOCOL")
	if endpoint == "" || protocol == "grpc" || isDisabled() {
		return nil
	}
	if u, err := url.Parse(endpoint); err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https") {
		return fmt.Errorf("%s is not a URL with http or https", name) // it may contain a secret
	}
	otel.SetLogger(logr.Discard()) // it would write to standard error
	e, err := otlpmetrichttp.New(ctx)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	defer func() { _ = e.Shutdown(ctx) }()
	if err := e.Export(ctx, data(ctx, m)); err != nil {
		return fmt.Errorf("%s: %s", name, queries.ReplaceAllString(err.Error(), "?…"))
	}
	return nil
}

// queries are the queries of URLs in a text. Those of a redirection may contain a secret.
var queries = regexp.MustCompile(`\?[^\s"]+`)

// variable returns the variable of metrics, or else that of all signals.
func variable(of string) (name, value string) {
	name = "OTEL_EXPORTER_OTLP_METRICS_" + of
	if value = os.Getenv(name); value != "" {
		return name, value
	}
	name = "OTEL_EXPORTER_OTLP_" + of
	return name, os.Getenv(name)
}

func isDisabled() bool {
	exporters := os.Getenv("OTEL_METRICS_EXPORTER")
	return strings.EqualFold(os.Getenv("OTEL_SDK_DISABLED"), "true") || (exporters != "" && !strings.Contains(exporters, "otlp"))
}

func data(ctx context.Context, m cli.RunMetrics) *metricdata.ResourceMetrics {
	labels := attribute.NewSet(attribute.String("key", m.Key))
	metrics := make([]metricdata.Metrics, len(m.Metrics))
	for i, f := range m.Metrics {
		point := metricdata.DataPoint[float64]{Attributes: labels, Time: m.Ended, Value: f.Value}
		metrics[i] = metricdata.Metrics{
			Name: f.Name, Unit: f.Unit, Description: f.Help,
			Data: metricdata.Gauge[float64]{DataPoints: []metricdata.DataPoint[float64]{point}},
		}
	}
	// What it cannot find out, it leaves out.
	from, _ := resource.New(ctx, resource.WithHost(), resource.WithFromEnv())
	own := resource.NewSchemaless(attribute.String("service.name", "dlock"), attribute.String("service.version", m.Version))
	if merged, err := resource.Merge(own, from); err == nil {
		own = merged
	}
	scope := instrumentation.Scope{Name: "github.com/ceyewan/genesis/cmd/dlock", Version: m.Version}
	return &metricdata.ResourceMetrics{Resource: own, ScopeMetrics: []metricdata.ScopeMetrics{{Scope: scope, Metrics: metrics}}}
}
