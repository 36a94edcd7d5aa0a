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

// ErrInvalidConfig is in every error of Validate and ParseLevel.
var ErrInvalidConfig = xerrors.New("invalid_config", "invalid log configuration")

// Config is the data of a Logger. The zero value is usable.
type Config struct {
	// Level is debug, info, warn or error: the least that is written. "" is info.
	Level string `json:"level" yaml:"level" mapstructure:"level"`
	// Format is text, json or console. Text, which "" means, is key=value;
	// console is for people, with colours if Output is a terminal and NO_COLOR
	// is not set.
	Format string `json:"format" yaml:"format" mapstructure:"format"`
	// AddSource writes the file and line of the caller.
	AddSource bool `json:"add_source" yaml:"add_source" mapstructure:"add_source"`
	// Output is where lines go, one Write for each; nil is standard error.
	Output io.Writer `json:"-" yaml:"-" mapstructure:"-" env:"-"`
}

// New returns a Logger; a nil cfg means the defaults. New never fails: in place
// of an invalid value it takes the default, and its first line says so. Who
// wants an error calls Validate before.
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

// Default returns the Logger that all callers of Default share: text on standard
// error, from info upwards.
func Default() Logger { return standard() }

var standard = sync.OnceValue(func() Logger { return New(nil) })

// Validate returns nil if New would take c as it is; nil is valid. All errors
// are ErrInvalidConfig.
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

// ParseLevel reads a level by its name, in any case; "" is info. As slog does
// it, "warn+2" is between warn and error.
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

// warn writes a line whatever the level.
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
