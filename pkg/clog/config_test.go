package clog_test

import (
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"strings"
	"testing"

	"github.com/ceyewan/genesis/pkg/clog"
	"github.com/ceyewan/genesis/pkg/xerrors"
)

func TestValidate(t *testing.T) {
	for _, c := range []*clog.Config{nil, {}, {Level: "debug", Format: "json"}, {Level: "WARN+2", Format: "console"}, {Level: "error", Format: "text"}} {
		if err := c.Validate(); err != nil {
			t.Errorf("%+v: %v", c, err)
		}
	}
	for _, c := range []*clog.Config{{Level: "loud"}, {Format: "xml"}, {Level: "loud", Format: "xml"}} {
		err := c.Validate()
		if !errors.Is(err, clog.ErrInvalidConfig) || xerrors.CodeOf(err) != "invalid_config" {
			t.Errorf("%+v: %v", c, err)
		}
		for _, bad := range []string{c.Level, c.Format} {
			if !strings.Contains(err.Error(), bad) {
				t.Errorf("%q is not in: %v", bad, err)
			}
		}
	}
}

func TestNewFallsBackAndSaysSo(t *testing.T) {
	l, read := logger(clog.Config{Level: "loud", Format: "json"})
	wrote(t, read(), `{"level":"warn","msg":"log configuration replaced by defaults",`+
		`"error":"invalid log configuration: Level \"loud\" is none of debug, info, warn, error"}`)
	if l.Enabled(t.Context(), slog.LevelDebug) || !l.Enabled(t.Context(), slog.LevelInfo) {
		t.Error("the level is not info")
	}
	l, read = logger(clog.Config{Level: "error", Format: "xml"})
	l.Error("m")
	wrote(t, read(), `level=warn msg="log configuration replaced by defaults" `+
		`error="invalid log configuration: Format \"xml\" is none of text, json, console"`, `level=error msg=m`)
	_, read = logger(clog.Config{})
	if read() != "" {
		t.Error("a valid configuration has something to say")
	}
}

func TestNilConfigWritesToStandardError(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer func(f *os.File) { os.Stderr = f }(os.Stderr)
	os.Stderr = w
	clog.New(nil).Info("from new")
	_ = w.Close()
	got := make([]byte, 1024)
	n, _ := r.Read(got)
	_ = r.Close()
	wrote(t, times.ReplaceAllString(string(got[:n]), ""), `level=info msg="from new"`)
}

func TestDefaultIsShared(t *testing.T) {
	l := clog.Default()
	if l != clog.Default() || l.Enabled(t.Context(), slog.LevelDebug) || !l.Enabled(t.Context(), slog.LevelInfo) {
		t.Error("Default is not one Logger from info upwards")
	}
}

func TestConfigFromJSON(t *testing.T) {
	var cfg clog.Config
	if err := json.Unmarshal([]byte(`{"level":"debug","format":"json","add_source":true}`), &cfg); err != nil {
		t.Fatal(err)
	}
	if cfg != (clog.Config{Level: "debug", Format: "json", AddSource: true}) {
		t.Errorf("%+v", cfg)
	}
}

func TestParseLevel(t *testing.T) {
	for name, want := range map[string]slog.Level{
		"": slog.LevelInfo, "debug": slog.LevelDebug, "Info": slog.LevelInfo, "WARN": slog.LevelWarn, "error": slog.LevelError, "warn+2": slog.LevelWarn + 2,
	} {
		if got, err := clog.ParseLevel(name); got != want || err != nil {
			t.Errorf("%q is %v, %v", name, got, err)
		}
	}
	if _, err := clog.ParseLevel("loud"); !errors.Is(err, clog.ErrInvalidConfig) {
		t.Error(err)
	}
}
