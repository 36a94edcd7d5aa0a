package telemetry

import (
	"context"
	"fmt"

	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/ceyewan/genesis/pkg/clog"
)

// An Option gives a Telemetry a collaborator. Shutdown also shuts down the
// exporters, processors and readers.
type Option func(*options)

type options struct {
	log             clog.Logger
	spanExporters   []sdktrace.SpanExporter
	spanProcessors  []sdktrace.SpanProcessor
	metricExporters []sdkmetric.Exporter
	metricReaders   []sdkmetric.Reader
	missing         string
	flushes         []*flush
}

// WithLogger sets where failures of exports are logged: one line when an exporter begins to fail,
// and one when it works again. Without it they go to the error handler of OpenTelemetry, which
// writes to standard error.
func WithLogger(l clog.Logger) Option {
	return func(o *options) { o.log = l.WithNamespace("telemetry") }
}

// WithSpanExporter sends finished spans to e, in batches and in the background. If spans arrive
// faster than they can be sent, they are dropped; callers do not wait.
func WithSpanExporter(e sdktrace.SpanExporter) Option {
	return func(o *options) {
		o.spanExporters = append(o.spanExporters, e)
		o.need(e != nil, "span exporter")
	}
}

// WithSpanProcessor passes spans to p when they start and end.
func WithSpanProcessor(p sdktrace.SpanProcessor) Option {
	return func(o *options) {
		o.spanProcessors = append(o.spanProcessors, p)
		o.need(p != nil, "span processor")
	}
}

// WithMetricExporter sends all metrics to e every Config.ExportInterval, in the background.
func WithMetricExporter(e sdkmetric.Exporter) Option {
	return func(o *options) {
		o.metricExporters = append(o.metricExporters, e)
		o.need(e != nil, "metric exporter")
	}
}

// WithMetricReader lets r read the metrics at any time.
func WithMetricReader(r sdkmetric.Reader) Option {
	return func(o *options) {
		o.metricReaders = append(o.metricReaders, r)
		o.need(r != nil, "metric reader")
	}
}

func (o *options) need(there bool, what string) {
	if !there {
		o.missing = what
	}
}

func collect(opts []Option) (*options, error) {
	o := &options{}
	for i, opt := range opts {
		if opt == nil {
			return nil, fmt.Errorf("%w: option %d is nil", ErrInvalidConfig, i)
		}
		opt(o)
	}
	if o.missing != "" {
		return nil, fmt.Errorf("%w: a %s is nil", ErrInvalidConfig, o.missing)
	}
	return o, nil
}

func (o *options) meterProvider(ctx context.Context, cfg Config, res *resource.Resource, scraped sdkmetric.Reader) *sdkmetric.MeterProvider {
	opts := []sdkmetric.Option{sdkmetric.WithResource(res), sdkmetric.WithReader(scraped)}
	for _, r := range o.metricReaders {
		opts = append(opts, sdkmetric.WithReader(r))
	}
	for _, e := range o.metricExporters {
		watched := metricExporter{e, o.watch(ctx, "metrics")}
		periodic := sdkmetric.NewPeriodicReader(watched, sdkmetric.WithInterval(cfg.ExportInterval))
		opts = append(opts, sdkmetric.WithReader(o.reader(periodic)))
	}
	return sdkmetric.NewMeterProvider(opts...)
}

func (o *options) tracerProvider(ctx context.Context, cfg Config, res *resource.Resource) tracerProvider {
	if len(o.spanExporters)+len(o.spanProcessors) == 0 {
		return nothing{}
	}
	opts := []sdktrace.TracerProviderOption{sdktrace.WithResource(res)}
	if cfg.SampleRatio > 0 {
		opts = append(opts, sdktrace.WithSampler(sdktrace.ParentBased(sdktrace.TraceIDRatioBased(cfg.SampleRatio))))
	}
	for _, p := range o.spanProcessors {
		opts = append(opts, sdktrace.WithSpanProcessor(p))
	}
	for _, e := range o.spanExporters {
		batcher := sdktrace.NewBatchSpanProcessor(spanExporter{e, o.watch(ctx, "spans")})
		opts = append(opts, sdktrace.WithSpanProcessor(o.processor(batcher)))
	}
	return sdktrace.NewTracerProvider(opts...)
}

// nothing is a provider of tracers that record nothing.
type nothing struct{ noop.TracerProvider }

func (nothing) Shutdown(context.Context) error { return nil }
