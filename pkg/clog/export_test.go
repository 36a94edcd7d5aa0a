package clog

import (
	"io"
	"log/slog"
)

// Colours returns the console handler for a terminal.
func Colours(out io.Writer) slog.Handler { return newConsole(out, slog.LevelInfo, false, true) }

// Colourful reports whether the console format would write colors to out.
func Colourful(out io.Writer) bool { return colourful(out) }
