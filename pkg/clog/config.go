package clog

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/ceyewan/genesis/pkg/xerrors"
)

// ErrInvalidConfig is wrapped by every error of Validate and ParseLevel.
var ErrInvalidConfig = xerrors.NewOf(xerrors.ErrInvalidConfig, "invalid_config", "invalid log configuration")

// Config configures a Logger. The zero value is usable.
type Config struct {
	// Level is the lowest level that is written: debug, info, warn or error. "" means info.
	Level string `json:"level" yaml:"level" mapstructure:"level"`
	// Format is text, json or console. "" means text, which is key=value; console is for people,
	// with colors if Output is a terminal and NO_COLOR is not set.
	Format string `json:"format" yaml:"format" mapstructure:"format"`
	// AddSource writes the file and line of the caller.
	AddSource bool `json:"add_source" yaml:"add_source" mapstructure:"add_source"`
	// Output is where lines go, with one Write for each; nil means standard error.
	Output io.Writer `json:"-" yaml:"-" mapstructure:"-" env:"-"`
}

// New returns a Logger; a nil cfg means the defaults. New never fails: it replaces an invalid value
// with the default and logs that in its first line. To get an error instead, call Validate first.
func New(cfg *Config) Logger {
	if cfg == nil {
		cfg = &Config{}
	}
	level := new(slog.LevelVar)
	if lv, err := ParseLevel(cfg.Level); err == nil {
		level.Set(lv)
	}
	h := cfg.handler(level)
	if err := cfg.Validate(); err != nil {
		warn(h, "log configuration replaced by defaults", err)
	}
	return Logger{&core{root: slog.New(h), level: level, out: h}}
}

// Default returns the Logger that all callers of Default share: text on standard error, at level
// info and above.
func Default() Logger { return standard() }

var standard = sync.OnceValue(func() Logger { return New(nil) })

// Validate returns nil if New would accept c unchanged; nil is valid. All errors are
// ErrInvalidConfig.
func (c *Config) Validate() error {
	if c == nil {
		return nil
	}
	_, err := ParseLevel(c.Level)
	switch c.Format {
	case "", "text", "json", "console":
		return err
	}
	return errors.Join(err, fmt.Errorf("%w: Format %q is none of text, json, console", ErrInvalidConfig, c.Format))
}

// ParseLevel parses a level name, in upper or lower case; "" means info. As in slog, "warn+2" is
// between warn and error.
func ParseLevel(name string) (slog.Level, error) {
	var level slog.Level
	if name == "" {
		return level, nil
	}
	if err := level.UnmarshalText([]byte(name)); err != nil {
		return slog.LevelInfo, fmt.Errorf("%w: Level %q is none of debug, info, warn, error", ErrInvalidConfig, name)
	}
	return level, nil
}

func (c *Config) handler(level slog.Leveler) slog.Handler {
	out := c.Output
	if out == nil {
		out = os.Stderr
	}
	opts := &slog.HandlerOptions{Level: level, AddSource: c.AddSource, ReplaceAttr: lowerLevel}
	switch c.Format {
	case "json":
		return slog.NewJSONHandler(out, opts)
	case "console":
		return newConsole(out, level, c.AddSource, colourful(out))
	}
	return slog.NewTextHandler(out, opts)
}

// warn writes a line regardless of the level.
func warn(h slog.Handler, msg string, err error) {
	r := slog.NewRecord(time.Now(), slog.LevelWarn, msg, 0)
	r.AddAttrs(Error(err))
	_ = h.Handle(context.Background(), r)
}

func lowerLevel(groups []string, a slog.Attr) slog.Attr {
	if level, ok := a.Value.Any().(slog.Level); ok && len(groups) == 0 && a.Key == slog.LevelKey {
		a.Value = slog.StringValue(strings.ToLower(level.String()))
	}
	return a
}
