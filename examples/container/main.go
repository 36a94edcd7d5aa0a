// The container example is a service that runs as several processes, of which one works
// at a time. One value of its configuration selects the backend of the locks:
//
//	go run ./examples/container                               # in Redis
//	GENESIS_DLOCK_BACKEND=etcd go run ./examples/container    # in etcd
//
// Start it twice, and stop it with Ctrl-C. With -metrics localhost:9464 it serves its
// metrics at http://localhost:9464/metrics.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/ceyewan/genesis/pkg/container"
)

func main() {
	config := flag.String("config", "examples/container/service.yaml", "configuration `file`")
	metrics := flag.String("metrics", "", "`host:port` to serve /metrics at; none if empty")
	task := flag.Duration("work", time.Second, "how long a turn takes")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Stdout, *config, *metrics, *task)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, out io.Writer, config, metrics string, task time.Duration) (err error) {
	cfg, err := container.Load(config) // reads the file, then the environment
	if err != nil {
		return err
	}
	var opts []container.Option
	if metrics != "" {
		meter, stop, err := serveMetrics(out, metrics)
		if err != nil {
			return err
		}
		defer stop()
		opts = append(opts, container.WithMeter(meter))
	}
	app, err := container.New(cfg, opts...) // creates the connector of the backend and the lock Client
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, app.Close()) }() // releases the locks, then closes what New created
	if err := app.Connect(ctx); err != nil {
		return fmt.Errorf("%w\nIs the server there? Its address is in %s, in GENESIS_REDIS_ADDR or in GENESIS_ETCD_ENDPOINTS", err, config)
	}
	return serve(ctx, app, out, task)
}
