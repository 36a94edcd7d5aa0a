package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"go.opentelemetry.io/otel/metric"

	"github.com/ceyewan/genesis/pkg/telemetry"
)

// serveMetrics returns a meter, and serves its values at http://addr/metrics until stop
// is called.
func serveMetrics(out io.Writer, addr string) (meter metric.Meter, stop func(), err error) {
	listener, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, nil, err
	}
	t, err := telemetry.New(telemetry.Config{ServiceName: "example", RuntimeMetrics: true})
	if err != nil {
		return nil, nil, errors.Join(err, listener.Close())
	}
	mux := http.NewServeMux()
	mux.Handle("/metrics", t.Handler())
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(listener) }) // until stop closes the server
	fmt.Fprintf(out, "metrics at http://%s/metrics\n", listener.Addr())
	return t.Meter("github.com/ceyewan/genesis/examples/container"), func() {
		_ = server.Close()
		serving.Wait()
		_ = t.Shutdown(context.Background())
	}, nil
}
