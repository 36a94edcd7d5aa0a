package otlp

import (
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"testing"
)

// The connections stay open until the last exporter is shut down, however often one is.
func TestLastExporterClosesConnections(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	defer server.Close()
	s := newSender(Config{})
	reused := func() (again bool) {
		t.Helper()
		ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{GotConn: func(c httptrace.GotConnInfo) { again = c.Reused }})
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, server.URL, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := s.client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		return again
	}
	traces, metrics := s.join(), s.join()
	reused()
	traces()
	traces()
	if !reused() {
		t.Error("the connection was closed, and an exporter may use it")
	}
	metrics()
	if reused() {
		t.Error("the connection is open after the last exporter was shut down")
	}
	s.client.CloseIdleConnections()
}
