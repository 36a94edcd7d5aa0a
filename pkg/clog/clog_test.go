package clog_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ceyewan/genesis/pkg/clog"
	"github.com/ceyewan/genesis/pkg/xerrors"
)

func TestLogger(t *testing.T) {
	l, read := logger(clog.Config{})
	l = l.WithNamespace("app").WithNamespace("").WithNamespace("dlock").With(clog.String("component", "dlock"))
	l.Debug("not written")
	l.Info("lock acquired", clog.String("key", "order:123"), clog.Int64("token", 7), clog.Duration("wait", time.Second))
	l.Warn("failed", clog.Error(errors.New("boom")))
	l.Error("no error", clog.Error(nil))
	l.Slog().Info("by slog", "n", 1)
	wrote(t, read(),
		`level=info msg="lock acquired" namespace=app.dlock component=dlock key=order:123 token=7 wait=1s`,
		`level=warn msg=failed namespace=app.dlock component=dlock error=boom`,
		`level=error msg="no error" namespace=app.dlock component=dlock error=""`,
		`level=info msg="by slog" namespace=app.dlock component=dlock n=1`,
	)
}

func TestFields(t *testing.T) {
	l, read := logger(clog.Config{Format: "json"})
	busy := fmt.Errorf("outer: %w", xerrors.New("busy", "taken"))
	l.Info("all", clog.String("s", "x y"), clog.Strings("list", []string{"a", "b"}), clog.Int("i", -1), clog.Int64("i64", -1<<62),
		clog.Uint64("u64", 1<<63), clog.Float64("f", 0.5), clog.Bool("b", true), clog.Duration("d", time.Second),
		clog.Time("t", time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)), clog.Any("any", map[string]int{"k": 1}),
		clog.Error(busy), clog.Code(busy), clog.Code(errors.New("plain")), clog.Code(nil))
	wrote(t, read(), `{"level":"info","msg":"all","s":"x y","list":["a","b"],"i":-1,"i64":-4611686018427387904,`+
		`"u64":9223372036854775808,"f":0.5,"b":true,"d":1000000000,"t":"2026-01-02T03:04:05Z","any":{"k":1},`+
		`"error":"outer: taken","code":"busy"}`)
}

func TestNamespaceComesBeforeFields(t *testing.T) {
	for format, want := range map[string]string{
		"text":    `level=info msg=m namespace=a.b x=1 y=2 z=3`,
		"json":    `{"level":"info","msg":"m","namespace":"a.b","x":1,"y":2,"z":3}`,
		"console": `INFO  a.b: m x=1 y=2 z=3`,
	} {
		l, read := logger(clog.Config{Format: format})
		l = l.With(clog.Int("x", 1)).WithNamespace("a").With(clog.Int("y", 2)).WithNamespace("b")
		l.Info("m", clog.Int("z", 3))
		l.Slog().Info("m", "z", 3)
		clog.FromSlog(l.Slog().With("z", 3)).Info("m")
		wrote(t, read(), want, want, want)
	}
}

func TestDerivedLoggersLeaveTheirParent(t *testing.T) {
	l, read := logger(clog.Config{})
	base := l.WithNamespace("app").With(clog.Int("x", 1))
	left, right := base.With(clog.Int("y", 2)), base.With(clog.Int("y", 3)).WithNamespace("sub")
	left.Info("m")
	right.Info("m")
	base.Info("m")
	wrote(t, read(),
		`level=info msg=m namespace=app x=1 y=2`,
		`level=info msg=m namespace=app.sub x=1 y=3`,
		`level=info msg=m namespace=app x=1`)
}

func TestSetLevelReachesAllOfOneNew(t *testing.T) {
	l, read := logger(clog.Config{Level: "warn"})
	other, readOther := logger(clog.Config{})
	child := clog.FromSlog(l.WithNamespace("app").Slog())
	std := l.Slog()
	child.Info("not yet")
	child.SetLevel(slog.LevelDebug)
	for _, line := range []func(string, ...clog.Field){l.Debug, child.Debug} {
		line("now")
	}
	std.Debug("now")
	other.Debug("never")
	wrote(t, read(), "level=debug msg=now", "level=debug msg=now namespace=app", "level=debug msg=now")
	if got := readOther(); got != "" {
		t.Errorf("another logger wrote %s", got)
	}
	l.SetLevel(slog.LevelError)
	if child.Enabled(t.Context(), slog.LevelWarn) || !child.Enabled(t.Context(), slog.LevelError) {
		t.Error("the level did not rise")
	}
}

type ctxKey struct{}

// ctxHandler writes a value of the context.
type ctxHandler struct{ slog.Handler }

func (h ctxHandler) Handle(ctx context.Context, r slog.Record) error {
	r.AddAttrs(slog.Any("from_ctx", ctx.Value(ctxKey{})))
	return h.Handler.Handle(ctx, r)
}

func TestHandlersSeeTheContext(t *testing.T) {
	var out bytes.Buffer
	l := clog.FromSlog(slog.New(ctxHandler{slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug})}))
	ctx := context.WithValue(t.Context(), ctxKey{}, "req-7")
	for _, line := range []func(context.Context, string, ...clog.Field){l.DebugContext, l.InfoContext, l.WarnContext, l.ErrorContext} {
		line(ctx, "m", clog.Int("n", 1))
	}
	got := times.ReplaceAllString(out.String(), "")
	wrote(t, got, "level=DEBUG msg=m n=1 from_ctx=req-7", "level=INFO msg=m n=1 from_ctx=req-7",
		"level=WARN msg=m n=1 from_ctx=req-7", "level=ERROR msg=m n=1 from_ctx=req-7")
}

func TestSource(t *testing.T) {
	for _, format := range []string{"text", "json", "console"} {
		l, read := logger(clog.Config{Format: format, AddSource: true})
		l.Info("m")
		l.ErrorContext(t.Context(), "m")
		l.With(clog.Int("n", 1)).Slog().Info("m")
		got := read()
		if n := strings.Count(got, "clog_test.go"); n != 3 {
			t.Errorf("%s: %d of 3 lines name this file:\n%s", format, n, got)
		}
	}
}

func TestFromSlog(t *testing.T) {
	plain := slog.New(slog.NewTextHandler(new(bytes.Buffer), nil))
	l := clog.FromSlog(plain)
	if l.Slog() != plain {
		t.Error("Slog does not give back what FromSlog was given")
	}
	l.SetLevel(slog.LevelError)
	if !l.Enabled(t.Context(), slog.LevelInfo) {
		t.Error("SetLevel changed a handler that is not ours")
	}
	if l == (clog.Logger{}) || clog.FromSlog(nil) != (clog.Logger{}) {
		t.Error("only a Logger that discards is the zero Logger")
	}
}

func TestZeroLoggerDiscards(t *testing.T) {
	for _, l := range []clog.Logger{{}, clog.FromSlog(nil)} {
		l = l.With(clog.Int("n", 1)).WithNamespace("x")
		l.Error("nowhere")
		l.ErrorContext(t.Context(), "nowhere")
		l.SetLevel(slog.LevelDebug)
		l.Slog().Error("nowhere")
		if l.Enabled(t.Context(), slog.LevelError) || l != (clog.Logger{}) {
			t.Error("enabled")
		}
	}
}

func TestConcurrentLines(t *testing.T) {
	l, read := logger(clog.Config{Format: "console"})
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			own := l.WithNamespace("app").With(clog.Int("worker", i))
			for range 50 {
				own.Info("m")
				own.SetLevel(slog.LevelInfo)
			}
		})
	}
	wg.Wait()
	lines := strings.Split(strings.TrimSpace(read()), "\n")
	if len(lines) != 400 {
		t.Fatalf("%d lines", len(lines))
	}
	for _, line := range lines {
		if !strings.HasPrefix(line, "INFO  app: m worker=") || len(line) != len("INFO  app: m worker=0") {
			t.Fatalf("a broken line: %q", line)
		}
	}
}

// nilError is an error whose methods do not work on nil.
type nilError struct{ text string }

func (e *nilError) Error() string { return e.text }
func (e *nilError) Code() string  { return e.text }

// Logging an error never panics, also if it is a nil pointer.
func TestErrorOfNilPointer(t *testing.T) {
	var err *nilError
	if f := clog.Error(err); f.Value.String() != "<nil>" {
		t.Errorf("%v", f)
	}
	if f := clog.Code(err); !f.Equal(clog.Field{}) {
		t.Errorf("%v", f)
	}
}
