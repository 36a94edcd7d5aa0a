package telemetry_test

import (
	"bytes"
	"errors"
	"math"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/ceyewan/genesis/pkg/telemetry"
	"github.com/ceyewan/genesis/pkg/xerrors"
)

func TestMetricsForPrometheus(t *testing.T) {
	tel := start(t, telemetry.Config{ServiceName: "shop", ServiceVersion: "1.2.0"})
	m := tel.Meter("example.com/shop")
	counter, err := m.Int64Counter("shop.requests", metric.WithDescription("Requests."))
	if err != nil {
		t.Fatal(err)
	}
	counter.Add(t.Context(), 3, metric.WithAttributes(attribute.String("result", "ok")))
	wait, err := m.Float64Histogram("shop.wait", metric.WithUnit("s"))
	if err != nil {
		t.Fatal(err)
	}
	wait.Record(t.Context(), 0.25)
	body := scrape(t, tel, "")
	for _, want := range []string{
		"# HELP shop_requests_total Requests.",
		`(?m)^shop_requests_total\{result="ok"\} 3$`,
		`(?m)^shop_wait_seconds_sum 0.25$`,
		`(?m)^target_info\{service_instance_id="\w+",service_name="shop",service_version="1.2.0",.*telemetry_sdk_language="go".*\} 1$`,
	} {
		if !regexp.MustCompile(want).MatchString(body) {
			t.Errorf("%s is not in\n%s", want, body)
		}
	}
	if strings.Contains(body, "go_goroutines") {
		t.Error("metrics of the runtime, without being asked")
	}
}

func TestRuntimeMetrics(t *testing.T) {
	body := scrape(t, start(t, telemetry.Config{RuntimeMetrics: true}), "")
	for _, want := range []string{"\ngo_goroutines ", "\ngo_memstats_heap_alloc_bytes "} {
		if !strings.Contains(body, want) {
			t.Errorf("%q is not in\n%s", want, body)
		}
	}
}

// A measurement under a sampled span carries a reference to its trace.
func TestExemplars(t *testing.T) {
	tel := start(t, telemetry.Config{}, telemetry.WithSpanProcessor(tracetest.NewSpanRecorder()))
	counter, _ := tel.Meter("m").Int64Counter("requests")
	ctx, span := tel.Tracer("t").Start(t.Context(), "request")
	counter.Add(ctx, 1)
	span.End()
	want := `trace_id="` + span.SpanContext().TraceID().String() + `"`
	if body := scrape(t, tel, "application/openmetrics-text; version=1.0.0"); !strings.Contains(body, want) {
		t.Errorf("%s is not in\n%s", want, body)
	}
}

func TestTwoInstancesAreApart(t *testing.T) {
	instance := regexp.MustCompile(`service_instance_id="\w+"`)
	a, b := scrape(t, start(t, telemetry.Config{}), ""), scrape(t, start(t, telemetry.Config{}), "")
	if x := instance.FindString(a); x == "" || x == instance.FindString(b) {
		t.Errorf("both are %s", x)
	}
}

func TestNoGlobals(t *testing.T) {
	tracers, meters := otel.GetTracerProvider(), otel.GetMeterProvider()
	tel := start(t, telemetry.Config{}, telemetry.WithSpanProcessor(tracetest.NewSpanRecorder()))
	counter, _ := tel.Meter("m").Int64Counter("not_global")
	counter.Add(t.Context(), 1)
	if otel.GetTracerProvider() != tracers || otel.GetMeterProvider() != meters {
		t.Error("a provider of OpenTelemetry was replaced")
	}
	families, err := prometheus.DefaultGatherer.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if strings.HasPrefix(f.GetName(), "not_global") || f.GetName() == "target_info" {
			t.Errorf("%s is in the default registry", f.GetName())
		}
	}
}

func TestWithoutExporterTracersDoNothing(t *testing.T) {
	tel := start(t, telemetry.Config{})
	_, span := tel.Tracer("t").Start(t.Context(), "s")
	if span.IsRecording() || span.SpanContext().IsValid() {
		t.Error("a span is recorded without an exporter")
	}
	span.End()
}

func TestSpanProcessorsAndResource(t *testing.T) {
	seen := tracetest.NewSpanRecorder()
	tel := start(t, telemetry.Config{ServiceName: "shop", ServiceVersion: "7"}, telemetry.WithSpanProcessor(seen))
	ctx, parent := tel.Tracer("t").Start(t.Context(), "parent")
	_, child := tel.TracerProvider().Tracer("u").Start(ctx, "child")
	child.End()
	parent.End()
	spans := seen.Ended()
	if len(spans) != 2 || spans[0].Name() != "child" || spans[0].Parent().SpanID() != spans[1].SpanContext().SpanID() {
		t.Fatalf("%v", spans)
	}
	if spans[0].InstrumentationScope().Name != "u" {
		t.Error(spans[0].InstrumentationScope())
	}
	for _, want := range []attribute.KeyValue{attribute.String("service.name", "shop"), attribute.String("service.version", "7")} {
		if !slices.Contains(spans[0].Resource().Attributes(), want) {
			t.Errorf("%v is not in %v", want, spans[0].Resource())
		}
	}
}

func TestMetricReader(t *testing.T) {
	reader := sdkmetric.NewManualReader()
	tel := start(t, telemetry.Config{}, telemetry.WithMetricReader(reader))
	counter, _ := tel.MeterProvider().Meter("m").Int64Counter("requests")
	counter.Add(t.Context(), 2)
	var got metricdata.ResourceMetrics
	if err := reader.Collect(t.Context(), &got); err != nil {
		t.Fatal(err)
	}
	value := got.ScopeMetrics[0].Metrics[0]
	if sum := value.Data.(metricdata.Sum[int64]); value.Name != "requests" || sum.DataPoints[0].Value != 2 {
		t.Errorf("%+v", value)
	}
}

func TestSampleRatio(t *testing.T) {
	tel := start(t, telemetry.Config{SampleRatio: 1e-18}, telemetry.WithSpanProcessor(tracetest.NewSpanRecorder()))
	_, root := tel.Tracer("t").Start(t.Context(), "root")
	if root.IsRecording() {
		t.Error("a trace in spite of the ratio")
	}
	ctx := trace.ContextWithSpanContext(t.Context(), trace.NewSpanContext(trace.SpanContextConfig{
		TraceID: trace.TraceID(bytes.Repeat([]byte{0xff}, 16)), SpanID: trace.SpanID{1}, TraceFlags: trace.FlagsSampled, Remote: true,
	}))
	if _, child := tel.Tracer("t").Start(ctx, "child"); !child.IsRecording() {
		t.Error("the decision of the caller is not respected")
	}
}

func TestInvalid(t *testing.T) {
	for _, cfg := range []telemetry.Config{
		{},
		{ServiceName: "\xff"},
		{ServiceName: "shop", ServiceVersion: "\xff"},
		{ServiceName: "shop", SampleRatio: -0.1},
		{ServiceName: "shop", SampleRatio: 1.1},
		{ServiceName: "shop", SampleRatio: math.NaN()},
		{ServiceName: "shop", ExportInterval: -time.Second},
	} {
		if err := cfg.Validate(); !errors.Is(err, telemetry.ErrInvalidConfig) || xerrors.CodeOf(err) != "invalid_config" {
			t.Errorf("%+v: %v", cfg, err)
		}
		if _, err := telemetry.New(cfg); !errors.Is(err, telemetry.ErrInvalidConfig) {
			t.Errorf("New(%+v): %v", cfg, err)
		}
	}
	var exporter sdktrace.SpanExporter
	var values sdkmetric.Exporter
	for _, opt := range []telemetry.Option{
		telemetry.WithSpanExporter(exporter), telemetry.WithSpanProcessor(nil), telemetry.WithMetricExporter(values), telemetry.WithMetricReader(nil),
	} {
		if _, err := telemetry.New(telemetry.Config{ServiceName: "shop"}, opt); !errors.Is(err, telemetry.ErrInvalidConfig) {
			t.Errorf("nil was accepted: %v", err)
		}
	}
}

// A nil option, for example from a helper that forgot a case, is an error and not a panic.
func TestNilOption(t *testing.T) {
	exporter := tracetest.NewInMemoryExporter()
	_, err := telemetry.New(telemetry.Config{ServiceName: "a"}, telemetry.WithSpanExporter(exporter), nil)
	if !errors.Is(err, telemetry.ErrInvalidConfig) || !strings.Contains(err.Error(), "option 1 is nil") {
		t.Error(err)
	}
}
