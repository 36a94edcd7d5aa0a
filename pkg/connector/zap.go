package connector

import (
	"context"
	"log/slog"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/ceyewan/genesis/pkg/clog"
)

// zapLogger writes the log of the etcd client to l, all of it at debug level: the client warns of
// every attempt that it repeats.
func zapLogger(l clog.Logger) *zap.Logger {
	return zap.New(slogCore{l.WithNamespace("etcd").Slog()})
}

type slogCore struct{ log *slog.Logger }

func (c slogCore) Enabled(zapcore.Level) bool {
	return c.log.Enabled(context.Background(), slog.LevelDebug)
}

func (c slogCore) With(fields []zapcore.Field) zapcore.Core {
	return slogCore{slog.New(c.log.Handler().WithAttrs(attrs(fields)))}
}

func (c slogCore) Check(e zapcore.Entry, to *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if !c.Enabled(e.Level) {
		return to
	}
	return to.AddCore(e, c)
}

func (c slogCore) Write(e zapcore.Entry, fields []zapcore.Field) error {
	c.log.LogAttrs(context.Background(), slog.LevelDebug, e.Message, append(attrs(fields), slog.String("zap_level", e.Level.String()))...)
	return nil
}

func (slogCore) Sync() error { return nil }

func attrs(fields []zapcore.Field) []slog.Attr {
	values := zapcore.NewMapObjectEncoder()
	var all []slog.Attr
	for _, f := range fields {
		f.AddTo(values)
		all = append(all, slog.Any(f.Key, values.Fields[f.Key]))
	}
	return all
}
