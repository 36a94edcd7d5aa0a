package otlp_test

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	metricpb "go.opentelemetry.io/proto/otlp/collector/metrics/v1"
	tracepb "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"

	"github.com/ceyewan/genesis/pkg/clog"
	"github.com/ceyewan/genesis/pkg/telemetry"
	"github.com/ceyewan/genesis/pkg/telemetry/otlp"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const secret = "Bearer s3cr3t-t0k3n"

// A collector decodes what it receives, and then answers as reply says.
type collector struct {
	*httptest.Server
	reply http.HandlerFunc

	mu      sync.Mutex
	paths   map[string]int
	auth    string
	traces  tracepb.ExportTraceServiceRequest
	metrics metricpb.ExportMetricsServiceRequest
	bad     error
}

func newCollector(t *testing.T, reply http.HandlerFunc) *collector {
	c := &collector{reply: reply, paths: map[string]int{}}
	c.Server = httptest.NewServer(c)
	t.Cleanup(c.Close)
	return c
}

func (c *collector) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	c.mu.Lock()
	c.paths[r.URL.Path]++
	c.auth = r.Header.Get("Authorization")
	var into proto.Message = &c.traces
	if strings.HasSuffix(r.URL.Path, "/v1/metrics") {
		into = &c.metrics
	}
	if err == nil && r.Header.Get("Content-Type") == "application/x-protobuf" {
		err = proto.Unmarshal(body, into)
	}
	if err != nil {
		c.bad = err
	}
	c.mu.Unlock()
	if c.reply != nil {
		c.reply(w, r)
	}
}

func (c *collector) endpoint() string { return c.Listener.Addr().String() }

// report makes a Telemetry that sends to cfg, reports a span and a metric with it, and returns a
// function that shuts it down, and its log.
func report(t *testing.T, cfg otlp.Config) (shutdown func(context.Context) error, log *journal) {
	t.Helper()
	log = new(journal)
	opts, err := otlp.Options(cfg)
	if err != nil {
		t.Fatal(err)
	}
	opts = append(opts, telemetry.WithLogger(clog.New(&clog.Config{Output: log})))
	tel, err := telemetry.New(telemetry.Config{ServiceName: "shop"}, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tel.Shutdown(context.Background()) })
	counter, err := tel.Meter("m").Int64Counter("shop.requests")
	if err != nil {
		t.Fatal(err)
	}
	counter.Add(t.Context(), 3)
	_, span := tel.Tracer("t").Start(t.Context(), "request")
	span.End()
	return tel.Shutdown, log
}

// journal is a log that may be read while others write it.
type journal struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (j *journal) Write(p []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.buf.Write(p)
}

func (j *journal) String() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.buf.String()
}
