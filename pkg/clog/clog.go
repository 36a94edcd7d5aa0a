// Package clog is a thin structured logger over log/slog: typed fields and
// dotted namespaces, and no engine of its own. A Logger is built from any
// *slog.Logger and gives one back.
package clog

import (
	"context"
	"log/slog"
	"time"
)

// A Field is one key and value of a log line.
type Field = slog.Attr

// String returns a field with a string value.
func String(key, value string) Field { return slog.String(key, value) }

// Int returns a field with an int value.
func Int(key string, value int) Field { return slog.Int(key, value) }

// Int64 returns a field with an int64 value.
func Int64(key string, value int64) Field { return slog.Int64(key, value) }

// Duration returns a field with a duration value.
func Duration(key string, value time.Duration) Field { return slog.Duration(key, value) }

// Error returns the field "error"; a nil err has an empty text.
func Error(err error) Field {
	if err == nil {
		return slog.String("error", "")
	}
	return slog.String("error", err.Error())
}

// A Logger writes structured lines. The zero Logger discards them.
type Logger struct {
	slog      *slog.Logger
	namespace string
}

// FromSlog returns a Logger that writes to l; nil discards.
func FromSlog(l *slog.Logger) Logger { return Logger{slog: l} }

// Slog returns a *slog.Logger that writes where l writes, with its namespace
// and fields. It is never nil.
func (l Logger) Slog() *slog.Logger {
	switch {
	case l.slog == nil:
		return slog.New(slog.DiscardHandler)
	case l.namespace == "":
		return l.slog
	}
	return l.slog.With("namespace", l.namespace)
}

// WithNamespace appends name to the namespace, joined with a dot.
func (l Logger) WithNamespace(name string) Logger {
	if l.namespace != "" && name != "" {
		name = l.namespace + "." + name
	}
	if name != "" {
		l.namespace = name
	}
	return l
}

// With returns a Logger that adds fields to every line.
func (l Logger) With(fields ...Field) Logger {
	if l.slog != nil {
		l.slog = slog.New(l.slog.Handler().WithAttrs(fields))
	}
	return l
}

// Enabled reports whether a line of this level would be written.
func (l Logger) Enabled(ctx context.Context, level slog.Level) bool {
	return l.slog != nil && l.slog.Enabled(ctx, level)
}

// Debug writes a line of level debug.
func (l Logger) Debug(msg string, fields ...Field) { l.log(slog.LevelDebug, msg, fields) }

// Info writes a line of level info.
func (l Logger) Info(msg string, fields ...Field) { l.log(slog.LevelInfo, msg, fields) }

// Warn writes a line of level warn.
func (l Logger) Warn(msg string, fields ...Field) { l.log(slog.LevelWarn, msg, fields) }

// Error writes a line of level error.
func (l Logger) Error(msg string, fields ...Field) { l.log(slog.LevelError, msg, fields) }

func (l Logger) log(level slog.Level, msg string, fields []Field) {
	ctx := context.Background()
	if !l.Enabled(ctx, level) {
		return
	}
	if l.namespace != "" {
		fields = append([]Field{slog.String("namespace", l.namespace)}, fields...)
	}
	l.slog.LogAttrs(ctx, level, msg, fields...)
}
