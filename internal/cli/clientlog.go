package cli

import (
	"context"
	"errors"
	"log/slog"

	"github.com/ceyewan/genesis/pkg/clog"
)

// A clientLog is a log handler that also passes on why calls fail that the Client repeats: it returns
// no error for them as long as there is hope.
type clientLog struct {
	slog.Handler
	failing map[string]chan<- error // by message; each has room for one error
}

// The messages of the Client.
const (
	renewalFails = "watchdog renew failed"
	callFails    = "backend fails"
)

// watchClient returns a logger that writes to log and passes on why renewals and other calls fail.
func watchClient(log clog.Logger) (watched clog.Logger, renewals, calls <-chan error) {
	r, c := make(chan error, 1), make(chan error, 1)
	h := &clientLog{log.Slog().Handler(), map[string]chan<- error{renewalFails: r, callFails: c}}
	return clog.FromSlog(slog.New(h)), r, c
}

// Enabled implements slog.Handler.
func (h *clientLog) Enabled(ctx context.Context, level slog.Level) bool {
	return level >= slog.LevelWarn || h.Handler.Enabled(ctx, level)
}

// Handle implements slog.Handler.
func (h *clientLog) Handle(ctx context.Context, r slog.Record) error {
	to := h.failing[r.Message]
	if to != nil {
		r.Attrs(func(a slog.Attr) bool {
			if a.Key == "error" {
				pass(to, a.Value)
			}
			return true
		})
	}
	if !h.Handler.Enabled(ctx, r.Level) {
		return nil
	}
	return h.Handler.Handle(ctx, r)
}

func pass(to chan<- error, v slog.Value) {
	err, ok := v.Any().(error)
	if !ok {
		err = errors.New(v.String())
	}
	select {
	case to <- err:
	default: // the last one was not taken yet
	}
}

// WithAttrs implements slog.Handler.
func (h *clientLog) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &clientLog{h.Handler.WithAttrs(attrs), h.failing}
}

// WithGroup implements slog.Handler.
func (h *clientLog) WithGroup(name string) slog.Handler {
	return &clientLog{h.Handler.WithGroup(name), h.failing}
}
