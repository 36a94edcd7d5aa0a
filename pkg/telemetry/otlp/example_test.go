package otlp_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"

	"github.com/ceyewan/genesis/pkg/telemetry"
	"github.com/ceyewan/genesis/pkg/telemetry/otlp"
)

func ExampleOptions() {
	collector := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { fmt.Println(r.URL.Path) }))
	defer collector.Close()

	opts, err := otlp.Options(otlp.Config{
		Endpoint: collector.Listener.Addr().String(), // "localhost:4318" in a program
		Insecure: true,
		Headers:  map[string]string{"authorization": "Bearer …"},
		Signals:  []string{"traces"},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	t, err := telemetry.New(telemetry.Config{ServiceName: "shop"}, opts...)
	if err != nil {
		fmt.Println(err)
		return
	}
	_, span := t.Tracer("example.com/shop").Start(context.Background(), "order")
	span.End()
	fmt.Println(t.Shutdown(context.Background()))
	// Output:
	// /v1/traces
	// <nil>
}
