package telemetry_test

import (
	"context"
	"fmt"
	"net/http/httptest"
	"strings"

	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/ceyewan/genesis/pkg/telemetry"
)

func ExampleNew() {
	ctx := context.Background()
	t, err := telemetry.New(telemetry.Config{ServiceName: "shop", ServiceVersion: "1.2.0"})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = t.Shutdown(ctx) }()

	orders, _ := t.Meter("example.com/shop").Int64Counter("shop.orders")
	orders.Add(ctx, 2)

	w := httptest.NewRecorder() // http.Handle("/metrics", t.Handler()) in a program
	t.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	for line := range strings.Lines(w.Body.String()) {
		if strings.HasPrefix(line, "shop_orders_total") {
			fmt.Print(line)
		}
	}
	// Output: shop_orders_total 2
}

func ExampleWithSpanProcessor() {
	ctx := context.Background()
	spans := tracetest.NewSpanRecorder()
	t, err := telemetry.New(telemetry.Config{ServiceName: "shop"}, telemetry.WithSpanProcessor(spans))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = t.Shutdown(ctx) }()
	_, span := t.Tracer("example.com/shop").Start(ctx, "order")
	span.End()
	fmt.Println(spans.Ended()[0].Name())
	// Output: order
}
