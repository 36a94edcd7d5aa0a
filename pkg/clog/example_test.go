package clog_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/ceyewan/genesis/pkg/clog"
)

// untimed omits the time, so that the examples have a stable output.
func untimed() *slog.Logger {
	return slog.New(slog.NewTextHandler(os.Stdout, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}}))
}

func ExampleNew() {
	log := clog.New(&clog.Config{Level: "info", Format: "json"}).WithNamespace("app")
	log.Info("started", clog.String("version", "1.2.0")) // on standard error
	fmt.Println("done")
	// Output: done
}

func ExampleFromSlog() {
	log := clog.FromSlog(untimed()).With(clog.String("component", "dlock")).WithNamespace("app").WithNamespace("dlock")
	log.Info("lock acquired", clog.String("key", "order:123"), clog.Duration("wait", 20*time.Millisecond))
	// Output: level=INFO msg="lock acquired" namespace=app.dlock component=dlock key=order:123 wait=20ms
}

func ExampleLogger_SetLevel() {
	log := clog.New(&clog.Config{Level: "warn"})
	part := log.WithNamespace("part")
	fmt.Println(part.Enabled(context.Background(), slog.LevelDebug))
	log.SetLevel(slog.LevelDebug)
	fmt.Println(part.Enabled(context.Background(), slog.LevelDebug))
	// Output:
	// false
	// true
}

func ExampleConfig_Validate() {
	cfg := clog.Config{Level: "loud"}
	fmt.Println(cfg.Validate())
	// Output: invalid log configuration: Level "loud" is none of debug, info, warn, error
}
