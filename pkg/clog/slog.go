package clog

import (
	"context"
	"log/slog"
)

// FromSlog returns a Logger that writes to l; nil discards. If l came from Slog, its namespace,
// fields and level are kept.
func FromSlog(l *slog.Logger) Logger {
	if l == nil {
		return Logger{}
	}
	if h, ok := l.Handler().(handler); ok {
		return Logger(h)
	}
	return Logger{&core{root: l, out: l.Handler()}}
}

// Slog returns a *slog.Logger that writes where l writes, with its namespace and fields. It is
// never nil.
func (l Logger) Slog() *slog.Logger {
	switch c := l.core; {
	case c == nil:
		return slog.New(slog.DiscardHandler)
	case c.level == nil && c.namespace == "" && len(c.fields) == 0:
		return c.root
	}
	return slog.New(handler(l))
}

// A handler is a Logger in the form of a slog.Handler.
type handler struct{ core *core }

func (h handler) Enabled(ctx context.Context, level slog.Level) bool {
	return h.core.out.Enabled(ctx, level)
}

func (h handler) Handle(ctx context.Context, r slog.Record) error {
	return h.core.out.Handle(ctx, r)
}

func (h handler) WithAttrs(attrs []slog.Attr) slog.Handler { return handler(Logger(h).With(attrs...)) }

// WithGroup returns a handler without namespaces: a namespace added later belongs to the group.
func (h handler) WithGroup(name string) slog.Handler {
	if name == "" {
		return h
	}
	return h.core.out.WithGroup(name)
}
