package otlp_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	tracepb "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/ceyewan/genesis/pkg/telemetry/otlp"
)

func (c *collector) verify(t *testing.T) {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.bad != nil {
		t.Fatal(c.bad)
	}
	if got := c.traces.GetResourceSpans(); len(got) != 1 || got[0].GetScopeSpans()[0].GetSpans()[0].GetName() != "request" {
		t.Errorf("traces: %v", got)
	}
	got := c.metrics.GetResourceMetrics()
	if len(got) != 1 {
		t.Fatalf("metrics: %v", got)
	}
	m := got[0].GetScopeMetrics()[0].GetMetrics()[0]
	if m.GetName() != "shop.requests" || m.GetSum().GetDataPoints()[0].GetAsInt() != 3 {
		t.Errorf("metric: %v", m)
	}
	for _, a := range got[0].GetResource().GetAttributes() {
		if a.GetKey() == "service.name" && a.GetValue().GetStringValue() == "shop" {
			return
		}
	}
	t.Errorf("the service has no name: %v", got[0].GetResource())
}

func TestExport(t *testing.T) {
	c := newCollector(t, nil)
	shutdown, log := report(t, otlp.Config{Endpoint: c.endpoint(), Insecure: true, Headers: map[string]string{"authorization": secret}})
	if err := shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
	c.verify(t)
	if c.auth != secret {
		t.Errorf("the header is %q", c.auth)
	}
	if log.String() != "" {
		t.Errorf("logged %s", log)
	}
}

func TestShutdownClosesConnections(t *testing.T) {
	states := make(chan http.ConnState, 64)
	server := httptest.NewUnstartedServer(http.NotFoundHandler())
	server.Config.ConnState = func(_ net.Conn, s http.ConnState) { states <- s }
	server.Start()
	defer server.Close()
	shutdown, _ := report(t, otlp.Config{Endpoint: server.Listener.Addr().String(), Insecure: true})
	if err := shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
	for open := 0; ; {
		select {
		case s := <-states:
			if s == http.StateNew {
				open++
			}
			if s == http.StateClosed {
				open--
			}
			if open == 0 {
				return
			}
		case <-time.After(10 * time.Second):
			t.Fatalf("%d connections are open", open)
		}
	}
}

func TestTLSAndPath(t *testing.T) {
	c := &collector{paths: map[string]int{}}
	server := httptest.NewTLSServer(c)
	defer server.Close()
	roots := x509.NewCertPool()
	roots.AddCert(server.Certificate())
	shutdown, log := report(t, otlp.Config{Endpoint: server.Listener.Addr().String() + "/otlp/", TLS: &tls.Config{RootCAs: roots}})
	if err := shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
	c.verify(t)
	if c.paths["/otlp/v1/traces"] != 1 || c.paths["/otlp/v1/metrics"] != 1 || log.String() != "" {
		t.Errorf("%v, %s", c.paths, log)
	}
}

// Without Insecure, nothing is ever sent unencrypted.
func TestTLSIsTheDefault(t *testing.T) {
	c := newCollector(t, nil)
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", c.URL)
	t.Setenv("OTEL_EXPORTER_OTLP_INSECURE", "true")
	shutdown, log := report(t, otlp.Config{Endpoint: c.endpoint(), Headers: map[string]string{"authorization": secret}, Timeout: time.Second})
	if err := shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
	if c.mu.Lock(); len(c.paths) != 0 {
		t.Errorf("sent %v", c.paths)
	}
	c.mu.Unlock()
	if n := strings.Count(log.String(), "export failed"); n != 2 {
		t.Errorf("logged %d times: %s", n, log)
	}
}

func TestEnvironmentChangesNothing(t *testing.T) {
	c := newCollector(t, nil)
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "https://elsewhere.invalid")
	t.Setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "https://elsewhere.invalid/x")
	t.Setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=wrong")
	shutdown, log := report(t, otlp.Config{Endpoint: c.endpoint(), Insecure: true})
	if err := shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
	c.verify(t)
	if c.auth != "" || log.String() != "" {
		t.Errorf("header %q, log %s", c.auth, log)
	}
}

func TestSignals(t *testing.T) {
	for signal, path := range map[string]string{"traces": "/v1/traces", "metrics": "/v1/metrics"} {
		c := newCollector(t, nil)
		shutdown, _ := report(t, otlp.Config{Endpoint: c.endpoint(), Insecure: true, Signals: []string{signal}})
		if err := shutdown(t.Context()); err != nil {
			t.Fatal(err)
		}
		if len(c.paths) != 1 || c.paths[path] != 1 {
			t.Errorf("%s: %v", signal, c.paths)
		}
	}
}

func TestUnreachableCollector(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	addr := server.Listener.Addr().String()
	server.Close()
	shutdown, log := report(t, otlp.Config{Endpoint: addr, Insecure: true, Headers: map[string]string{"authorization": secret}})
	if err := shutdown(t.Context()); err != nil {
		t.Errorf("Shutdown: %v", err)
	}
	for _, want := range []string{"signal=spans", "signal=metrics", "connection refused", addr} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("%q is not in the log: %s", want, log)
		}
	}
}

func TestHangingCollector(t *testing.T) {
	c := newCollector(t, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	shutdown, log := report(t, otlp.Config{Endpoint: c.endpoint(), Insecure: true, Timeout: 50 * time.Millisecond})
	if err := shutdown(t.Context()); err != nil {
		t.Errorf("Shutdown: %v", err)
	}
	if n := strings.Count(log.String(), "export failed"); n != 2 {
		t.Errorf("logged %d times: %s", n, log)
	}
	shutdown, _ = report(t, otlp.Config{Endpoint: c.endpoint(), Insecure: true, Timeout: time.Hour})
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := shutdown(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Shutdown: %v", err)
	}
}

// echo answers with the headers of the request, as debugging proxies do.
func echo(code int) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(code)
		_, _ = io.WriteString(w, "you sent "+r.Header.Get("Authorization"))
	}
}

func TestSecretsAreNotLogged(t *testing.T) {
	partial, err := proto.Marshal(&tracepb.ExportTraceServiceResponse{
		PartialSuccess: &tracepb.ExportTracePartialSuccess{RejectedSpans: 7, ErrorMessage: "no thanks, " + secret},
	})
	if err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		reply   http.HandlerFunc
		timeout time.Duration
		want    string
	}{
		"refused":     {echo(http.StatusForbidden), time.Minute, "403 Forbidden"},
		"overloaded":  {echo(http.StatusServiceUnavailable), 4 * time.Second, "503 Service Unavailable"}, // which it waits out
		"in part":     {func(w http.ResponseWriter, _ *http.Request) { protobuf(w, partial) }, time.Minute, "the collector rejected 7 items"},
		"broken off":  {func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, time.Minute, "EOF"},
		"not OTLP":    {echo(http.StatusOK), time.Minute, ""},
		"bad message": {func(w http.ResponseWriter, _ *http.Request) { protobuf(w, []byte(secret)) }, time.Minute, ""},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCollector(t, test.reply)
			shutdown, log := report(t, otlp.Config{
				Endpoint: c.endpoint(), Insecure: true, Headers: map[string]string{"authorization": secret}, Timeout: test.timeout,
			})
			if err := shutdown(t.Context()); err != nil {
				t.Errorf("Shutdown: %v", err)
			}
			if got := log.String(); !strings.Contains(got, test.want) || (test.want == "") != (got == "") {
				t.Errorf("%q is not in the log: %s", test.want, got)
			}
			if strings.Contains(log.String(), "s3cr3t") {
				t.Errorf("the secret is in the log: %s", log)
			}
		})
	}
}

func protobuf(w http.ResponseWriter, message []byte) {
	w.Header().Set("Content-Type", "application/x-protobuf")
	_, _ = w.Write(message)
}

// Go would send along all headers except a few well-known ones.
func TestRedirectsAreNotFollowed(t *testing.T) {
	elsewhere := newCollector(t, nil)
	c := newCollector(t, func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, elsewhere.URL+r.URL.Path, http.StatusTemporaryRedirect)
	})
	shutdown, log := report(t, otlp.Config{Endpoint: c.endpoint(), Insecure: true, Headers: map[string]string{"x-api-key": secret}})
	if err := shutdown(t.Context()); err != nil {
		t.Errorf("Shutdown: %v", err)
	}
	if len(elsewhere.paths) != 0 || !strings.Contains(log.String(), "307 Temporary Redirect") {
		t.Errorf("%v, %s", elsewhere.paths, log)
	}
}
