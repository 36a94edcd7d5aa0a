package telemetry

import (
	"context"
	"sync/atomic"

	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
)

// The providers of the SDK shut down one exporter after another. A collector that hangs would cost
// the others what is left for them, so Shutdown starts all of them itself, at the same time.

// A flush sends what is left for one exporter. All calls wait for the same end.
type flush struct {
	shutdown func(context.Context) error
	begun    atomic.Bool
	ended    chan struct{} // closed when err is final
	err      error
}

func (f *flush) run(ctx context.Context) error {
	if !f.begun.Swap(true) {
		f.err = f.shutdown(ctx)
		close(f.ended)
	}
	<-f.ended
	return f.err
}

type metricReader struct {
	*sdkmetric.PeriodicReader
	flush *flush
}

func (r metricReader) Shutdown(ctx context.Context) error { return r.flush.run(ctx) }

func (o *options) reader(r *sdkmetric.PeriodicReader) sdkmetric.Reader {
	return metricReader{r, o.flushOf(r.Shutdown)}
}

type spanProcessor struct {
	sdktrace.SpanProcessor
	flush *flush
}

func (p spanProcessor) Shutdown(ctx context.Context) error { return p.flush.run(ctx) }

func (o *options) processor(p sdktrace.SpanProcessor) sdktrace.SpanProcessor {
	return spanProcessor{p, o.flushOf(p.Shutdown)}
}

func (o *options) flushOf(shutdown func(context.Context) error) *flush {
	f := &flush{shutdown: shutdown, ended: make(chan struct{})}
	o.flushes = append(o.flushes, f)
	return f
}
