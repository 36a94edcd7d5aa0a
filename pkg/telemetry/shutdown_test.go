package telemetry_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/ceyewan/genesis/pkg/telemetry"
)

// exporter accepts spans and metrics, as send says.
type exporter struct {
	send func(context.Context) error

	mu       sync.Mutex
	names    []string
	shutdown int
}

func (e *exporter) take(ctx context.Context, names ...string) error {
	e.mu.Lock()
	e.names = append(e.names, names...)
	e.mu.Unlock()
	if e.send == nil {
		return nil
	}
	return e.send(ctx)
}

func (e *exporter) taken() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.names
}

func (e *exporter) shutdowns() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.shutdown
}

func (e *exporter) Shutdown(context.Context) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.shutdown++
	return nil
}

func (e *exporter) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	var names []string
	for _, s := range spans {
		names = append(names, s.Name())
	}
	return e.take(ctx, names...)
}

// values is an exporter of metrics.
type values struct{ *exporter }

func (v values) Export(ctx context.Context, m *metricdata.ResourceMetrics) error {
	var names []string
	for _, scope := range m.ScopeMetrics {
		for _, value := range scope.Metrics {
			names = append(names, value.Name)
		}
	}
	return v.take(ctx, names...)
}

func (values) ForceFlush(context.Context) error { return nil }

func (values) Temporality(k sdkmetric.InstrumentKind) metricdata.Temporality {
	return sdkmetric.DefaultTemporalitySelector(k)
}

func (values) Aggregation(k sdkmetric.InstrumentKind) sdkmetric.Aggregation {
	return sdkmetric.DefaultAggregationSelector(k)
}

func TestShutdownSendsWhatIsLeft(t *testing.T) {
	spans, metrics := &exporter{}, &exporter{}
	tel := start(t, telemetry.Config{}, telemetry.WithSpanExporter(spans), telemetry.WithMetricExporter(values{metrics}))
	counter, _ := tel.Meter("m").Int64Counter("requests")
	counter.Add(t.Context(), 1)
	_, span := tel.Tracer("t").Start(t.Context(), "request")
	span.End()
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			if err := tel.Shutdown(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if err := tel.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
	if got := strings.Join(append(spans.taken(), metrics.taken()...), " "); got != "request requests" {
		t.Errorf("sent %q", got)
	}
	if spans.shutdowns() != 1 || metrics.shutdowns() != 1 {
		t.Errorf("shut down %d and %d times", spans.shutdowns(), metrics.shutdowns())
	}
	counter.Add(t.Context(), 1)
	_, span = tel.Tracer("t").Start(t.Context(), "late")
	span.End()
	scrape(t, tel, "")
}

// The virtual clock would show any wait, and the bubble any remaining goroutine.
func TestShutdownEndsWithItsContext(t *testing.T) {
	for name, give := range map[string]time.Duration{"in time": 100 * time.Millisecond, "already ended": 0} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				hang := func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
				spans, metrics := &exporter{send: hang}, &exporter{send: hang}
				tel := start(t, telemetry.Config{}, telemetry.WithLogger(new(journal).logger()),
					telemetry.WithSpanExporter(spans), telemetry.WithMetricExporter(values{metrics}))
				_, span := tel.Tracer("t").Start(t.Context(), "request")
				span.End()
				ctx, cancel := context.WithTimeout(t.Context(), give)
				defer cancel()
				begun := time.Now()
				if err := tel.Shutdown(ctx); !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("Shutdown: %v", err)
				}
				if took := time.Since(begun); took != give {
					t.Errorf("Shutdown took %v", took)
				}
				synctest.Wait()
				if spans.shutdowns() != 1 || metrics.shutdowns() != 1 || time.Since(begun) != give {
					t.Error("the exporters are not shut down")
				}
			})
		})
	}
}

// What is left for one exporter does not wait for another whose collector hangs.
func TestShutdownSendsToAllAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hang := func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
		spans, metrics := &exporter{}, &exporter{}
		tel := start(t, telemetry.Config{}, telemetry.WithLogger(new(journal).logger()),
			telemetry.WithSpanExporter(&exporter{send: hang}), telemetry.WithSpanExporter(spans),
			telemetry.WithMetricExporter(values{&exporter{send: hang}}), telemetry.WithMetricExporter(values{metrics}))
		counter, _ := tel.Meter("m").Int64Counter("requests")
		counter.Add(t.Context(), 1)
		_, span := tel.Tracer("t").Start(t.Context(), "request")
		span.End()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		var wg sync.WaitGroup
		wg.Go(func() {
			if err := tel.Shutdown(ctx); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("Shutdown: %v", err)
			}
		})
		synctest.Wait() // no time has passed
		if got := strings.Join(append(spans.taken(), metrics.taken()...), " "); got != "request requests" {
			t.Errorf("sent %q", got)
		}
		wg.Wait()
		if err := tel.Shutdown(t.Context()); err != nil {
			t.Errorf("at last: %v", err)
		}
		if spans.shutdowns() != 1 || metrics.shutdowns() != 1 {
			t.Errorf("shut down %d and %d times", spans.shutdowns(), metrics.shutdowns())
		}
	})
}

// An exporter that does not honor its context cannot delay Shutdown.
func TestShutdownLeavesADeafExporter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		wake := make(chan struct{})
		deaf := &exporter{send: func(context.Context) error { <-wake; return nil }}
		tel := start(t, telemetry.Config{ExportInterval: time.Second}, telemetry.WithMetricExporter(values{deaf}))
		time.Sleep(1500 * time.Millisecond) // virtual: an export is in progress
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		begun := time.Now()
		if err := tel.Shutdown(ctx); !errors.Is(err, context.DeadlineExceeded) || time.Since(begun) != time.Second {
			t.Errorf("after %v: %v", time.Since(begun), err)
		}
		close(wake)
	})
}

func TestFullQueueDoesNotBlock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hang := &exporter{send: func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }}
		tel := start(t, telemetry.Config{}, telemetry.WithSpanExporter(hang), telemetry.WithLogger(new(journal).logger()))
		begun := time.Now()
		for range 10_000 {
			_, span := tel.Tracer("t").Start(t.Context(), "request")
			span.End()
		}
		if took := time.Since(begun); took != 0 {
			t.Errorf("the caller waited for %v", took)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_ = tel.Shutdown(ctx)
	})
}

// outage makes an exporter fail from the start, until it is cleared.
type outage struct {
	mu  sync.Mutex
	err error
}

func (o *outage) set(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.err = err
}

func (o *outage) send(context.Context) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.err
}

func TestOutageIsReportedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		down := &outage{err: errors.New("no route")}
		log := new(journal)
		tel := start(t, telemetry.Config{ExportInterval: time.Second}, telemetry.WithLogger(log.logger().WithNamespace("app")),
			telemetry.WithMetricExporter(values{&exporter{send: down.send}}))
		time.Sleep(5500 * time.Millisecond) // virtual: five exports
		down.set(nil)
		time.Sleep(5 * time.Second)
		down.set(errors.New("again"))
		if err := tel.Shutdown(t.Context()); err != nil {
			t.Errorf("a failed export failed Shutdown: %v", err)
		}
		var lines []string
		for line := range strings.Lines(log.String()) {
			_, line, _ = strings.Cut(strings.TrimSpace(line), " ")
			lines = append(lines, line)
		}
		want := []string{
			`level=warn msg="export failed" namespace=app.telemetry signal=metrics error="no route"`,
			`level=info msg="export works again" namespace=app.telemetry signal=metrics`,
			`level=warn msg="export failed" namespace=app.telemetry signal=metrics error=again`,
		}
		if got := strings.Join(lines, "\n"); got != strings.Join(want, "\n") {
			t.Errorf("wrote\n%s\nwant\n%s", got, strings.Join(want, "\n"))
		}
	})
}

func TestWithoutLoggerOpenTelemetryHandlesErrors(t *testing.T) {
	var got []error
	defer otel.SetErrorHandler(otel.GetErrorHandler())
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { got = append(got, err) }))
	cause := errors.New("no route")
	tel := start(t, telemetry.Config{}, telemetry.WithMetricExporter(values{&exporter{send: (&outage{err: cause}).send}}))
	if err := tel.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
	if len(got) != 1 || !errors.Is(got[0], cause) {
		t.Errorf("%v", got)
	}
}

// A metric that conflicts with another does not affect the rest.
func TestScrapeGoesOnWithoutTheBadMetric(t *testing.T) {
	log := new(journal)
	tel := start(t, telemetry.Config{RuntimeMetrics: true}, telemetry.WithLogger(log.logger()))
	clash, _ := tel.Meter("m").Int64Counter("go.goroutines") // the runtime has a gauge of this name
	gauge, _ := tel.Meter("m").Int64Gauge("go.goroutines")
	good, _ := tel.Meter("m").Int64Counter("good")
	clash.Add(t.Context(), 1)
	gauge.Record(t.Context(), 1)
	good.Add(t.Context(), 1)
	if body := scrape(t, tel, ""); !strings.Contains(body, "good_total 1") {
		t.Errorf("the good one is not in\n%s", body)
	}
	if !strings.Contains(log.String(), `msg="scrape failed in part" namespace=telemetry error=`) {
		t.Errorf("the log is %q", log)
	}
}
