// Package otlp sends traces and metrics to an OpenTelemetry collector over HTTP:
//
//	opts, err := otlp.Options(otlp.Config{Endpoint: "localhost:4318", Insecure: true})
//	if err != nil {
//		return err
//	}
//	t, err := telemetry.New(telemetry.Config{ServiceName: "shop"}, opts...)
//
// It is a separate package because its exporters link gRPC, even if they do not use it.
package otlp

import (
	"context"
	"fmt"
	"maps"

	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetrichttp"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/ceyewan/genesis/pkg/telemetry"
)

// Options returns the options with which telemetry.New sends to the collector at cfg.Endpoint.
// Options itself sends nothing. A collector that cannot be reached neither blocks the program nor
// makes it fail: data is dropped, and that is reported as described at telemetry.WithLogger. Errors
// are telemetry.ErrInvalidConfig.
func Options(cfg Config) ([]telemetry.Option, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg.Headers = maps.Clone(cfg.Headers)
	s := newSender(cfg)
	var opts []telemetry.Option
	if cfg.sends("traces") {
		e, err := s.spans(cfg)
		if err != nil {
			return nil, fmt.Errorf("%w: traces: %w", telemetry.ErrInvalidConfig, err)
		}
		opts = append(opts, telemetry.WithSpanExporter(e))
	}
	if cfg.sends("metrics") {
		e, err := s.metrics(cfg)
		if err != nil {
			return nil, fmt.Errorf("%w: metrics: %w", telemetry.ErrInvalidConfig, err)
		}
		opts = append(opts, telemetry.WithMetricExporter(e))
	}
	return opts, nil
}

// The options override every environment variable that concerns where to send and what is sent
// along.
func (s *sender) spans(cfg Config) (sdktrace.SpanExporter, error) {
	e, err := otlptracehttp.New(context.Background(),
		otlptracehttp.WithEndpointURL(cfg.url("/v1/traces")), otlptracehttp.WithHeaders(cfg.Headers),
		otlptracehttp.WithTLSClientConfig(nil), otlptracehttp.WithHTTPClient(s.client))
	return spanExporter{e, s, s.join()}, err
}

func (s *sender) metrics(cfg Config) (sdkmetric.Exporter, error) {
	e, err := otlpmetrichttp.New(context.Background(),
		otlpmetrichttp.WithEndpointURL(cfg.url("/v1/metrics")), otlpmetrichttp.WithHeaders(cfg.Headers),
		otlpmetrichttp.WithTLSClientConfig(nil), otlpmetrichttp.WithHTTPClient(s.client))
	return metricExporter{e, s, s.join()}, err
}

type spanExporter struct {
	sdktrace.SpanExporter
	sender *sender
	leave  func()
}

func (e spanExporter) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	ctx, cancel := e.sender.withTimeout(ctx)
	defer cancel()
	return e.SpanExporter.ExportSpans(ctx, spans)
}

func (e spanExporter) Shutdown(ctx context.Context) error {
	defer e.leave()
	return e.SpanExporter.Shutdown(ctx)
}

type metricExporter struct {
	sdkmetric.Exporter
	sender *sender
	leave  func()
}

func (e metricExporter) Export(ctx context.Context, m *metricdata.ResourceMetrics) error {
	ctx, cancel := e.sender.withTimeout(ctx)
	defer cancel()
	return e.Exporter.Export(ctx, m)
}

func (e metricExporter) Shutdown(ctx context.Context) error {
	defer e.leave()
	return e.Exporter.Shutdown(ctx)
}

// withTimeout limits one export, including retries.
func (s *sender) withTimeout(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, s.timeout, fmt.Errorf("no success within %v", s.timeout))
}
