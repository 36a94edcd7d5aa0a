// Package clog is a thin structured logger on top of log/slog: typed fields, dotted namespaces, and
// a level that can change while the program runs. New makes a Logger from a Config, FromSlog makes
// one from any *slog.Logger, and Slog converts it back.
package clog

import (
	"context"
	"log/slog"
	"runtime"
	"slices"
	"time"
)

// namespaceKey is the key under which a line carries its namespace.
const namespaceKey = "namespace"

// background is for lines without a context of the caller.
var background = context.Background()

// A Logger writes structured lines. The zero Logger discards them. Loggers are values: deriving one
// does not change the original.
type Logger struct{ core *core }

// A core never changes. It stores the fields separately from root, because the namespace is written
// before them, even if it is added later.
type core struct {
	root      *slog.Logger
	level     *slog.LevelVar // nil if the level belongs to a slog handler
	namespace string
	fields    []Field
	out       slog.Handler // root with the namespace and the fields
}

// WithNamespace appends name to the namespace, joined with a dot.
func (l Logger) WithNamespace(name string) Logger {
	if l.core == nil || name == "" {
		return l
	}
	if l.core.namespace != "" {
		name = l.core.namespace + "." + name
	}
	return Logger{l.core.derive(name, l.core.fields)}
}

// With returns a Logger that adds fields to every line, after its namespace.
func (l Logger) With(fields ...Field) Logger {
	if l.core == nil || len(fields) == 0 {
		return l
	}
	return Logger{l.core.derive(l.core.namespace, slices.Concat(l.core.fields, fields))}
}

// SetLevel sets the lowest level that is written, for all Loggers that come from the same New. It
// has no effect on a Logger from FromSlog, whose handler decides the level.
func (l Logger) SetLevel(level slog.Level) {
	if l.core != nil && l.core.level != nil {
		l.core.level.Set(level)
	}
}

// Enabled reports whether a line of this level would be written.
func (l Logger) Enabled(ctx context.Context, level slog.Level) bool {
	return l.core != nil && l.core.out.Enabled(ctx, level)
}

// Debug writes a line of level debug.
func (l Logger) Debug(msg string, fields ...Field) {
	l.log(background, slog.LevelDebug, msg, fields)
}

// Info writes a line of level info.
func (l Logger) Info(msg string, fields ...Field) {
	l.log(background, slog.LevelInfo, msg, fields)
}

// Warn writes a line of level warn.
func (l Logger) Warn(msg string, fields ...Field) {
	l.log(background, slog.LevelWarn, msg, fields)
}

// Error writes a line of level error.
func (l Logger) Error(msg string, fields ...Field) {
	l.log(background, slog.LevelError, msg, fields)
}

// DebugContext is Debug for handlers that take something from ctx.
func (l Logger) DebugContext(ctx context.Context, msg string, fields ...Field) {
	l.log(ctx, slog.LevelDebug, msg, fields)
}

// InfoContext is Info for handlers that take something from ctx.
func (l Logger) InfoContext(ctx context.Context, msg string, fields ...Field) {
	l.log(ctx, slog.LevelInfo, msg, fields)
}

// WarnContext is Warn for handlers that take something from ctx.
func (l Logger) WarnContext(ctx context.Context, msg string, fields ...Field) {
	l.log(ctx, slog.LevelWarn, msg, fields)
}

// ErrorContext is Error for handlers that take something from ctx.
func (l Logger) ErrorContext(ctx context.Context, msg string, fields ...Field) {
	l.log(ctx, slog.LevelError, msg, fields)
}

// The exported methods call log directly: the third frame is their caller, which is the source of
// the line.
func (l Logger) log(ctx context.Context, level slog.Level, msg string, fields []Field) {
	if !l.Enabled(ctx, level) {
		return
	}
	var pc [1]uintptr
	runtime.Callers(3, pc[:])
	record := slog.NewRecord(time.Now(), level, msg, pc[0])
	record.AddAttrs(fields...)
	_ = l.core.out.Handle(ctx, record)
}

func (c *core) derive(namespace string, fields []Field) *core {
	out := c.root.Handler()
	if namespace != "" {
		out = out.WithAttrs([]slog.Attr{slog.String(namespaceKey, namespace)})
	}
	if len(fields) > 0 {
		out = out.WithAttrs(fields)
	}
	return &core{root: c.root, level: c.level, namespace: namespace, fields: fields, out: out}
}
