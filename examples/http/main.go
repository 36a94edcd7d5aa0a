// The http example is an HTTP service that builds reports. One request at a time builds a
// given report, however many processes of the service run. Another request for the same
// report is answered with 409. A request that cannot get or keep its lock is answered
// with 503.
//
//	go run ./examples/http &
//	curl -i -X POST localhost:8080/reports/july
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/ceyewan/genesis/pkg/connector"
	"github.com/ceyewan/genesis/pkg/dlock"
)

func main() {
	addr := flag.String("addr", "localhost:6379", "`host:port` of the Redis server")
	listen := flag.String("listen", "localhost:8080", "`host:port` to serve at")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Stdout, *addr, *listen)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, out io.Writer, addr, listen string) error {
	conn, err := connector.NewRedis(&connector.RedisConfig{Addr: addr})
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.Connect(ctx); err != nil {
		return fmt.Errorf("%w\nIs Redis there? Start it with \"redis-server\", or name another one with -addr", err)
	}
	locks, err := dlock.NewRedis(conn, &dlock.Config{Prefix: "example:"})
	if err != nil {
		return err
	}
	defer locks.Close() // releases the locks that requests still hold

	mux := http.NewServeMux()
	mux.Handle("POST /reports/{name}", &reports{locks, time.Second, build})
	server := &http.Server{Addr: listen, Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	fmt.Fprintln(out, "try: curl -i -X POST", listen+"/reports/july")
	defer context.AfterFunc(ctx, func() { _ = server.Close() })()
	if err := server.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// build simulates work that takes some seconds and stops when its context ends.
func build(ctx context.Context, _ string) error {
	select {
	case <-time.After(3 * time.Second):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
