package otlp

import (
	"cmp"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/protobuf/proto"
)

// maxAnswer limits how much of an answer is read; answers have a few bytes.
const maxAnswer = 64 << 10

// A sender is what both exporters send through. It has its own connections, so that Shutdown can
// close them.
type sender struct {
	client  *http.Client
	timeout time.Duration
	users   atomic.Int32 // exporters that were not shut down
}

// join adds an exporter. The last one that leaves closes the connections: closing them earlier can
// break an export of another that begins in the same moment.
func (s *sender) join() (leave func()) {
	s.users.Add(1)
	return sync.OnceFunc(func() {
		if s.users.Add(-1) == 0 {
			s.client.CloseIdleConnections()
		}
	})
}

func newSender(cfg Config) *sender {
	transport := &http.Transport{
		Proxy:               http.ProxyFromEnvironment,
		DialContext:         (&net.Dialer{KeepAlive: 30 * time.Second}).DialContext,
		TLSClientConfig:     cfg.TLS.Clone(),
		ForceAttemptHTTP2:   true,
		MaxIdleConnsPerHost: 2,
		IdleConnTimeout:     90 * time.Second,
	}
	return &sender{
		client: &http.Client{
			Transport:     discreet{transport},
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }, // headers go to Endpoint alone
		},
		timeout: cmp.Or(cfg.Timeout, defaultTimeout),
	}
}

// discreet keeps the text of a collector's answers out of errors, and so out of logs: some
// collectors repeat the headers. The status replaces the body.
type discreet struct{ *http.Transport }

func (d discreet) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := d.Transport.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	answer, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	_ = resp.Body.Close()
	if err != nil {
		return nil, err
	}
	if n := rejected(resp, answer); n > 0 {
		return nil, fmt.Errorf("the collector rejected %d items", n)
	}
	resp.Status = fmt.Sprintf("%d %s", resp.StatusCode, http.StatusText(resp.StatusCode))
	resp.Header.Set("Content-Type", "text/plain")
	resp.Body = io.NopCloser(strings.NewReader(resp.Status))
	return resp, nil
}

// rejected returns how many spans or data points a collector refused while it accepted the rest.
// The answers for traces and for metrics have the same form.
func rejected(resp *http.Response, answer []byte) int64 {
	var a collector.ExportTraceServiceResponse
	if resp.StatusCode/100 != 2 || resp.Header.Get("Content-Type") != "application/x-protobuf" || proto.Unmarshal(answer, &a) != nil {
		return 0
	}
	return a.GetPartialSuccess().GetRejectedSpans()
}
