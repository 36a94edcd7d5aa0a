package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/ceyewan/genesis/pkg/clog"
	"github.com/ceyewan/genesis/pkg/container"
	"github.com/ceyewan/genesis/pkg/dlock"
)

// serve takes turns with the other processes until ctx ends.
func serve(ctx context.Context, app *container.Container, out io.Writer, task time.Duration) error {
	app.Log.Info("service started", clog.Int("pid", os.Getpid()))
	defer app.Log.Info("service stopped")
	for ctx.Err() == nil {
		// Do waits for the lock, runs the function and releases the lock.
		err := app.DLock.Do(ctx, "turn", func(ctx context.Context) error { return work(ctx, out, task) })
		switch {
		case ctx.Err() != nil: // the service is being stopped
		case errors.Is(err, dlock.ErrOwnershipLost): // another process may have worked at the same time
			app.Log.Warn("this turn was not ours alone", clog.Error(err))
		case err != nil:
			return err
		}
	}
	return nil
}

// work must not run in two processes at the same time. It stops when its context ends,
// because the service is stopped or the lock is lost.
func work(ctx context.Context, out io.Writer, task time.Duration) error {
	fmt.Fprintf(out, "%s process %d begins\n", time.Now().Format(time.RFC3339Nano), os.Getpid())
	defer func() {
		fmt.Fprintf(out, "%s process %d ends\n", time.Now().Format(time.RFC3339Nano), os.Getpid())
	}()
	select {
	case <-time.After(task):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
