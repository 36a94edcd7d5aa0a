// Package telemetry sets up OpenTelemetry for one service: meters whose values Prometheus reads,
// and tracers.
//
//	t, err := telemetry.New(telemetry.Config{ServiceName: "shop"})
//	if err != nil {
//		return err
//	}
//	defer t.Shutdown(ctx)
//	http.Handle("/metrics", t.Handler())
//	requests, err := t.Meter("shop").Int64Counter("shop.requests")
//
// All parts are passed explicitly: New sets no OpenTelemetry global and registers nothing with
// Prometheus' default registry. Package otlp sends to a collector; it is separate, so that programs
// that do not need it do not link it.
package telemetry

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"

	"go.opentelemetry.io/otel/metric"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/trace"
)

// A Telemetry provides meters and tracers, and owns what exports their data.
type Telemetry struct {
	handler http.Handler
	meters  *sdkmetric.MeterProvider
	tracers tracerProvider
	flushes []*flush

	abort    context.CancelFunc // ends exports in progress
	stopping sync.Once
	stopped  chan struct{} // closed when err is final
	err      error
}

// tracerProvider is a provider of the SDK, or one that records nothing.
type tracerProvider interface {
	trace.TracerProvider
	Shutdown(context.Context) error
}

// New returns a Telemetry. It touches no network. If it fails, it has not begun to use the
// exporters, processors and readers among opts.
func New(cfg Config, opts ...Option) (*Telemetry, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	o, err := collect(opts)
	if err != nil {
		return nil, err
	}
	res, err := cfg.resource()
	if err != nil {
		return nil, fmt.Errorf("telemetry: %w", err)
	}
	scraped, handler, err := scrape(cfg, o)
	if err != nil {
		return nil, fmt.Errorf("telemetry: %w", err)
	}
	ctx, abort := context.WithCancel(context.Background())
	t := &Telemetry{
		handler: handler,
		meters:  o.meterProvider(ctx, cfg, res, scraped),
		tracers: o.tracerProvider(ctx, cfg, res),
		abort:   abort,
		stopped: make(chan struct{}),
	}
	t.flushes = o.flushes
	return t, nil
}

// Meter returns the meter with this name, which by convention is the import path of the package
// that measures.
func (t *Telemetry) Meter(name string, opts ...metric.MeterOption) metric.Meter {
	return t.meters.Meter(name, opts...)
}

// MeterProvider is for libraries that create their own meters.
func (t *Telemetry) MeterProvider() metric.MeterProvider { return t.meters }

// Tracer returns the tracer with this name. If no option accepts spans, it records nothing.
func (t *Telemetry) Tracer(name string, opts ...trace.TracerOption) trace.Tracer {
	return t.tracers.Tracer(name, opts...)
}

// TracerProvider is for libraries that create their own tracers.
func (t *Telemetry) TracerProvider() trace.TracerProvider { return t.tracers }

// Handler serves the metrics to Prometheus. A counter named shop.requests appears as
// shop_requests_total, and a histogram shop.wait in "s" as shop_wait_seconds. Measurements under a
// sampled span carry exemplars, for scrapers that request OpenMetrics.
func (t *Telemetry) Handler() http.Handler { return t.handler }

// Shutdown sends the remaining data and stops everything. It returns when ctx ends, at the latest,
// and aborts exports that are in progress then. It may be called more than once: all calls wait for
// the same end. A failed export is reported like any other (see WithLogger), and is not an error of
// Shutdown.
func (t *Telemetry) Shutdown(ctx context.Context) error {
	t.stopping.Do(func() { go t.stop(context.WithoutCancel(ctx)) })
	select {
	case <-t.stopped:
		return t.err
	case <-ctx.Done():
		t.abort()
		return fmt.Errorf("telemetry: shutdown: %w", ctx.Err())
	}
}

// stop uses a context that does not end: otherwise the SDK would leave its goroutines running.
// abort ends what it waits for.
func (t *Telemetry) stop(ctx context.Context) {
	defer close(t.stopped)
	defer t.abort()
	var spans error
	var wg sync.WaitGroup
	for _, f := range t.flushes {
		wg.Go(func() { _ = f.run(ctx) }) // the providers return the error
	}
	wg.Go(func() { spans = t.tracers.Shutdown(ctx) })
	values := t.meters.Shutdown(ctx)
	wg.Wait()
	t.err = errors.Join(spans, values)
}
