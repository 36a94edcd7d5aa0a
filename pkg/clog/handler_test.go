package clog_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"testing"
	"testing/slogtest"
	"time"

	"github.com/ceyewan/genesis/pkg/clog"
)

// All formats follow the rules of slog, through Slog and its adapter.
func TestHandlers(t *testing.T) {
	parsers := map[string]func(*testing.T, string) map[string]any{
		"json": parseJSON, "text": parseText, "console": parseConsole,
	}
	for format, parse := range parsers {
		t.Run(format, func(t *testing.T) {
			var out bytes.Buffer
			slogtest.Run(t, func(*testing.T) slog.Handler {
				out.Reset()
				return clog.New(&clog.Config{Format: format, Output: &out}).Slog().Handler()
			}, func(t *testing.T) map[string]any {
				return parse(t, strings.TrimSuffix(out.String(), "\n"))
			})
		})
	}
}

func parseJSON(t *testing.T, line string) map[string]any {
	var m map[string]any
	if err := json.Unmarshal([]byte(line), &m); err != nil {
		t.Fatal(err)
	}
	return m
}

func parseText(t *testing.T, line string) map[string]any {
	m := map[string]any{}
	for line != "" {
		key, rest := token(t, line, "=")
		value, rest := token(t, rest, " ")
		put(m, key, value)
		line = rest
	}
	return m
}

// parseConsole relies on the messages of slogtest being one word.
func parseConsole(t *testing.T, line string) map[string]any {
	m := map[string]any{}
	if stamp, rest, ok := strings.Cut(line, " "); ok {
		if _, err := time.Parse("15:04:05.000", stamp); err == nil {
			m[slog.TimeKey], line = stamp, rest
		}
	}
	head := strings.Fields(line)
	m[slog.LevelKey], m[slog.MessageKey] = head[0], head[1]
	_, rest, _ := strings.Cut(line, head[1])
	for key, value := range parseText(t, strings.TrimPrefix(rest, " ")) {
		m[key] = value
	}
	return m
}

// token takes the text before end, which may be quoted, off the front of s.
func token(t *testing.T, s, end string) (value, rest string) {
	if !strings.HasPrefix(s, `"`) {
		value, rest, _ = strings.Cut(s, end)
		return value, rest
	}
	quote, err := strconv.QuotedPrefix(s)
	if err != nil {
		t.Fatal(err)
	}
	value, _ = strconv.Unquote(quote)
	return value, strings.TrimPrefix(s[len(quote):], end)
}

func put(m map[string]any, key string, value any) {
	for {
		group, rest, ok := strings.Cut(key, ".")
		if !ok {
			m[key] = value
			return
		}
		if m[group] == nil {
			m[group] = map[string]any{}
		}
		m, key = m[group].(map[string]any), rest
	}
}

func TestConsole(t *testing.T) {
	l, read := logger(clog.Config{Format: "console", Level: "debug"})
	l = l.WithNamespace("app").WithNamespace("dlock")
	l.Info("lock acquired", clog.String("key", "order:123"), clog.Duration("wait", time.Second), clog.Strings("tags", []string{"a", "b"}))
	l.Debug("two\nlines", clog.String("a b", "x=y"), clog.String("empty", ""), clog.String("evil", "\x1b[2J\r\n"))
	l.Slog().WithGroup("g").With("namespace", "kept").Warn("grouped", slog.Group("h", "n", 1), "err", errors.New("boom"), "nil", nil)
	l.With(clog.String("namespace", "mine")).Error("other", clog.Time("t", time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC)))
	wrote(t, read(),
		`INFO  app.dlock: lock acquired key=order:123 wait=1s tags="[a b]"`,
		`DEBUG app.dlock: "two\nlines" "a b"="x=y" empty="" evil="\x1b[2J\r\n"`,
		`WARN  app.dlock: grouped g.namespace=kept g.h.n=1 g.err=boom g.nil=<nil>`,
		`ERROR app.dlock: other namespace=mine t=2026-01-02T03:04:05.000006Z`,
	)
}

func TestConsoleGroups(t *testing.T) {
	l, read := logger(clog.Config{Format: "console"})
	group := l.Slog().WithGroup("g").With("a", 1, "b", 2, "c", 3)
	left, right := group.With("x", "l"), group.With("x", "r")
	left.Info("m", clog.Code(nil))
	right.Info("m")
	l.Slog().WithGroup("g").With("namespace", "first").Info("m")
	wrote(t, read(), "INFO  m g.a=1 g.b=2 g.c=3 g.x=l", "INFO  m g.a=1 g.b=2 g.c=3 g.x=r", "INFO  m g.namespace=first")
}

func TestColours(t *testing.T) {
	var out bytes.Buffer
	l := slog.New(clog.Colours(&out))
	l.Warn("m", "k", "v")
	l.Error("m")
	wrote(t, times.ReplaceAllString(out.String(), ""),
		"\x1b[33mWARN \x1b[0m m \x1b[2mk=\x1b[0mv", "\x1b[31mERROR\x1b[0m m")
}

func TestColoursAreForTerminals(t *testing.T) {
	device, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0) // a device of characters, as a terminal is
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = device.Close() }()
	r, pipe, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Close(); _ = pipe.Close() }()
	t.Setenv("NO_COLOR", "")
	t.Setenv("TERM", "xterm")
	if !clog.Colourful(device) || clog.Colourful(pipe) || clog.Colourful(new(bytes.Buffer)) {
		t.Error("colours in a pipe, or none in a terminal")
	}
	t.Setenv("TERM", "dumb")
	if clog.Colourful(device) {
		t.Error("colours in a dumb terminal")
	}
	t.Setenv("TERM", "xterm")
	t.Setenv("NO_COLOR", "1")
	if clog.Colourful(device) {
		t.Error("colours in spite of NO_COLOR")
	}
}

// nasty is a value whose methods panic.
type nasty struct{}

func (nasty) Error() string { panic("no") }

func TestConsoleSurvivesItsValues(t *testing.T) {
	l, read := logger(clog.Config{Format: "console"})
	var none *time.Time
	l.Info("m", clog.Any("err", nasty{}), clog.Any("none", none), clog.Any("list", []any{1, fmt.Errorf("x")}))
	if got := read(); strings.Count(got, "\n") != 1 || !strings.Contains(got, "none=<nil>") {
		t.Errorf("wrote %q", got)
	}
}
