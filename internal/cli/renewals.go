package cli

import (
	"context"
	"errors"
	"log/slog"

	"github.com/ceyewan/genesis/pkg/clog"
)

// A renewalLog is a log handler that also passes on why renewals fail. The Client returns no error
// for that while the lock is still valid.
type renewalLog struct {
	slog.Handler
	failed chan error // has room for the last one
}

// renewalFailed is the message of the Client.
const renewalFailed = "watchdog renew failed"

// watchRenewals returns a logger that writes to log and passes on why renewals fail.
func watchRenewals(log clog.Logger) (clog.Logger, <-chan error) {
	h := &renewalLog{log.Slog().Handler(), make(chan error, 1)}
	return clog.FromSlog(slog.New(h)), h.failed
}

// Enabled implements slog.Handler.
func (h *renewalLog) Enabled(ctx context.Context, level slog.Level) bool {
	return level >= slog.LevelWarn || h.Handler.Enabled(ctx, level)
}

// Handle implements slog.Handler.
func (h *renewalLog) Handle(ctx context.Context, r slog.Record) error {
	if r.Message == renewalFailed {
		r.Attrs(func(a slog.Attr) bool {
			if a.Key == "error" {
				h.pass(a.Value)
			}
			return true
		})
	}
	if !h.Handler.Enabled(ctx, r.Level) {
		return nil
	}
	return h.Handler.Handle(ctx, r)
}

func (h *renewalLog) pass(v slog.Value) {
	err, ok := v.Any().(error)
	if !ok {
		err = errors.New(v.String())
	}
	select {
	case h.failed <- err:
	default: // the supervisor has not taken the last one yet
	}
}

// WithAttrs implements slog.Handler.
func (h *renewalLog) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &renewalLog{h.Handler.WithAttrs(attrs), h.failed}
}

// WithGroup implements slog.Handler.
func (h *renewalLog) WithGroup(name string) slog.Handler {
	return &renewalLog{h.Handler.WithGroup(name), h.failed}
}
