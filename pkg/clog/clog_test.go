package clog_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/ceyewan/genesis/pkg/clog"
)

func TestLogger(t *testing.T) {
	var out bytes.Buffer
	handler := slog.NewTextHandler(&out, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}})
	l := clog.FromSlog(slog.New(handler)).WithNamespace("app").WithNamespace("").WithNamespace("dlock").With(clog.String("component", "dlock"))
	l.Debug("not written")
	l.Info("acquired", clog.String("key", "k"), clog.Int("n", 1), clog.Int64("fence", 7), clog.Duration("wait", time.Second))
	l.Warn("failed", clog.Error(errors.New("boom")))
	l.Error("no error", clog.Error(nil))
	l.Slog().Info("by slog")
	want := []string{
		`level=INFO msg=acquired component=dlock namespace=app.dlock key=k n=1 fence=7 wait=1s`,
		`level=WARN msg=failed component=dlock namespace=app.dlock error=boom`,
		`level=ERROR msg="no error" component=dlock namespace=app.dlock error=""`,
		`level=INFO msg="by slog" component=dlock namespace=app.dlock`,
	}
	if got := strings.TrimSpace(out.String()); got != strings.Join(want, "\n") {
		t.Errorf("wrote\n%s\nwant\n%s", got, strings.Join(want, "\n"))
	}
	if plain := slog.New(handler); clog.FromSlog(plain).Slog() != plain {
		t.Error("a logger without a namespace does not give back what it was made from")
	}
}

func TestZeroLoggerDiscards(t *testing.T) {
	for _, l := range []clog.Logger{{}, clog.FromSlog(nil)} {
		l = l.With(clog.Int("n", 1)).WithNamespace("x")
		l.Error("nowhere")
		l.Slog().Error("nowhere")
		if l.Enabled(context.Background(), slog.LevelError) {
			t.Error("enabled")
		}
	}
}
