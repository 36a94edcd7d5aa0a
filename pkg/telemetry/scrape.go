package telemetry

import (
	"errors"
	"fmt"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.opentelemetry.io/otel"
	otelprom "go.opentelemetry.io/otel/exporters/prometheus"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"

	"github.com/ceyewan/genesis/pkg/clog"
)

// scrape returns a metric reader and the handler that serves its metrics to Prometheus, with their
// own registry.
func scrape(cfg Config, o *options) (sdkmetric.Reader, http.Handler, error) {
	registry := prometheus.NewRegistry()
	reader, err := otelprom.New(otelprom.WithRegisterer(registry), otelprom.WithoutScopeInfo())
	if err != nil {
		return nil, nil, err
	}
	if cfg.RuntimeMetrics {
		err = errors.Join(
			registry.Register(collectors.NewGoCollector()),
			registry.Register(collectors.NewProcessCollector(collectors.ProcessCollectorOpts{})),
		)
	}
	return reader, promhttp.HandlerFor(registry, promhttp.HandlerOpts{
		ErrorLog:          scrapeLog{o.log},
		ErrorHandling:     promhttp.ContinueOnError, // one bad metric does not take the others along
		EnableOpenMetrics: true,
	}), err
}

type scrapeLog struct{ log clog.Logger }

func (s scrapeLog) Println(v ...any) {
	if s.log == (clog.Logger{}) {
		otel.Handle(fmt.Errorf("telemetry: scrape: %s", fmt.Sprint(v...)))
		return
	}
	s.log.Warn("scrape failed in part", clog.String("error", fmt.Sprint(v...)))
}
