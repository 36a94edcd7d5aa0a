package clog

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode"
)

// A console is a slog.Handler for people:
//
//	15:04:05.000 INFO  app.dlock: lock acquired key=order:123 wait=1s
//
// Whatever the text, a record is one line, and nothing in it can control the terminal.
type console struct {
	mu     *sync.Mutex // guards out; all that derive share both
	out    io.Writer
	level  slog.Leveler
	source bool
	colour bool

	namespace string
	prefix    string // of keys: the open groups, each with a dot
	attrs     []byte // what WithAttrs added, formatted
}

func newConsole(out io.Writer, level slog.Leveler, source, colour bool) *console {
	return &console{mu: new(sync.Mutex), out: out, level: level, source: source, colour: colour}
}

// colourful follows https://no-color.org.
func colourful(out io.Writer) bool {
	f, ok := out.(interface{ Stat() (os.FileInfo, error) }) // an *os.File, or what writes to one
	if !ok || os.Getenv("NO_COLOR") != "" || os.Getenv("TERM") == "dumb" {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

func (c *console) Enabled(_ context.Context, level slog.Level) bool { return level >= c.level.Level() }

func (c *console) Handle(_ context.Context, r slog.Record) error {
	buf := make([]byte, 0, 256)
	if !r.Time.IsZero() {
		buf = r.Time.AppendFormat(buf, "15:04:05.000 ")
	}
	buf = append(c.paint(buf, levelColour(r.Level), fmt.Sprintf("%-5s", r.Level)), ' ')
	if c.namespace != "" {
		buf = append(append(buf, printable(c.namespace)...), ": "...)
	}
	buf = append(append(buf, printable(r.Message)...), c.attrs...)
	r.Attrs(func(a slog.Attr) bool {
		buf = c.appendAttr(buf, c.prefix, a)
		return true
	})
	if src := r.Source(); c.source && src != nil {
		buf = c.appendPair(buf, slog.SourceKey, filepath.Base(src.File)+":"+strconv.Itoa(src.Line))
	}
	buf = append(buf, '\n')
	c.mu.Lock()
	defer c.mu.Unlock()
	_, err := c.out.Write(buf)
	return err
}

func (c *console) WithAttrs(attrs []slog.Attr) slog.Handler {
	d := *c
	d.attrs = append([]byte(nil), c.attrs...)
	for _, a := range attrs {
		if a.Key == namespaceKey && d.namespace == "" && d.prefix == "" && len(d.attrs) == 0 {
			d.namespace = a.Value.Resolve().String()
			continue
		}
		d.attrs = c.appendAttr(d.attrs, c.prefix, a)
	}
	return &d
}

func (c *console) WithGroup(name string) slog.Handler {
	if name == "" {
		return c
	}
	d := *c
	d.prefix += name + "."
	return &d
}

func (c *console) appendAttr(buf []byte, prefix string, a slog.Attr) []byte {
	a.Value = a.Value.Resolve()
	if a.Equal(slog.Attr{}) {
		return buf
	}
	if a.Value.Kind() != slog.KindGroup {
		return c.appendPair(buf, prefix+a.Key, text(a.Value))
	}
	if a.Key != "" {
		prefix += a.Key + "."
	}
	for _, member := range a.Value.Group() {
		buf = c.appendAttr(buf, prefix, member)
	}
	return buf
}

func (c *console) appendPair(buf []byte, key, value string) []byte {
	buf = c.paint(append(buf, ' '), "2", quoted(key)+"=")
	return append(buf, quoted(value)...)
}

// paint appends s in a color, which is an SGR parameter of the terminal.
func (c *console) paint(buf []byte, colour, s string) []byte {
	if !c.colour {
		return append(buf, s...)
	}
	return fmt.Appendf(buf, "\x1b[%sm%s\x1b[0m", colour, s)
}

func levelColour(level slog.Level) string {
	switch {
	case level >= slog.LevelError:
		return "31"
	case level >= slog.LevelWarn:
		return "33"
	case level >= slog.LevelInfo:
		return "32"
	}
	return "2"
}

func text(v slog.Value) string {
	switch v.Kind() {
	case slog.KindTime:
		return v.Time().Format(time.RFC3339Nano)
	case slog.KindAny:
		return fmt.Sprintf("%+v", v.Any())
	default:
		return v.String()
	}
}

// quoted makes keys and values distinguishable.
func quoted(s string) string {
	if s == "" || strings.ContainsAny(s, ` ="`) {
		return strconv.Quote(s)
	}
	return printable(s)
}

// printable returns s, quoted if a part of it is not visible.
func printable(s string) string {
	if strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) || r == unicode.ReplacementChar }) {
		return strconv.Quote(s)
	}
	return s
}
