package telemetry

import (
	"context"
	"fmt"
	"sync/atomic"

	"go.opentelemetry.io/otel"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/ceyewan/genesis/pkg/clog"
)

// A watch wraps one exporter. It reports changes between working and failing, so that a collector
// that is down costs two lines and not one for every attempt, and it aborts exports when Shutdown
// has no time left.
type watch struct {
	lifetime context.Context
	log      clog.Logger
	signal   string
	failing  atomic.Bool
}

func (o *options) watch(lifetime context.Context, signal string) *watch {
	return &watch{lifetime: lifetime, log: o.log, signal: signal}
}

func (w *watch) export(ctx context.Context, send func(context.Context) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(w.lifetime, cancel)() //nolint:contextcheck // the export ends with either of two contexts
	if err := send(ctx); err != nil {
		w.failed(ctx, err)
	} else if w.failing.Swap(false) {
		w.log.InfoContext(ctx, "export works again", clog.String("signal", w.signal))
	}
	return nil
}

func (w *watch) failed(ctx context.Context, err error) {
	if w.failing.Swap(true) {
		return
	}
	if w.log == (clog.Logger{}) {
		otel.Handle(fmt.Errorf("telemetry: export of %s failed: %w", w.signal, err))
		return
	}
	w.log.WarnContext(ctx, "export failed", clog.String("signal", w.signal), clog.Error(err))
}

type spanExporter struct {
	sdktrace.SpanExporter
	watch *watch
}

func (e spanExporter) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	return e.watch.export(ctx, func(ctx context.Context) error { return e.SpanExporter.ExportSpans(ctx, spans) })
}

type metricExporter struct {
	sdkmetric.Exporter
	watch *watch
}

func (e metricExporter) Export(ctx context.Context, m *metricdata.ResourceMetrics) error {
	return e.watch.export(ctx, func(ctx context.Context) error { return e.Exporter.Export(ctx, m) })
}
