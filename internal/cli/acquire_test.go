package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/ceyewan/genesis/pkg/clog"
	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/memlock"
)

// onAcquired is a log handler that is called when a lock is taken and its caller does not know yet.
type onAcquired struct {
	slog.Handler
	f func()
}

func (h onAcquired) Enabled(context.Context, slog.Level) bool { return true }
func (h onAcquired) WithAttrs([]slog.Attr) slog.Handler       { return h }
func (h onAcquired) WithGroup(string) slog.Handler            { return h }

func (h onAcquired) Handle(_ context.Context, r slog.Record) error {
	if r.Message == "lock acquired" {
		h.f()
	}
	return nil
}

// newRun is a run of a command.
func newRun(t *testing.T, backend driver.Opener, log clog.Logger) *run {
	t.Helper()
	client, err := dlock.New(&dlock.Config{}, dlock.WithBackend(backend), dlock.WithLogger(log))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	r := &run{app: &app{getenv: os.Getenv}, key: "k", args: []string{"true"}, ttl: time.Minute, onLost: "kill", session: &session{client: client}}
	r.cmd = r.runCommand()
	r.cmd.SetContext(t.Context())
	r.reporter.quiet = true
	return r
}

// A signal that comes with the lock ends the run: the command must not be started.
func TestSignalWithTheGrant(t *testing.T) {
	t.Parallel()
	signals := make(chan os.Signal, 1)
	r := newRun(t, memlock.New(), clog.FromSlog(slog.New(onAcquired{f: func() {
		signals <- syscall.SIGTERM
		for len(signals) > 0 { // until it is received
			runtime.Gosched()
		}
	}})))
	err := backendError(r.acquire(signals))
	var e *exit
	if !errors.As(err, &e) || e.code != exitSignal+int(syscall.SIGTERM) {
		t.Errorf("the run goes on: %v", err)
	}
}

// A signal that ends a wait counts more than why the last renewal of that wait had failed.
func TestSignalAfterAFailedRenewal(t *testing.T) {
	t.Parallel()
	stopped := fmt.Errorf("%w: %w: %w", context.Canceled, signalled{syscall.SIGINT}, dlock.ErrInvalidKey)
	var e *exit
	if err := backendError(stopped); !errors.As(err, &e) || e.code != exitSignal+int(syscall.SIGINT) {
		t.Errorf("%v", err)
	}
}
