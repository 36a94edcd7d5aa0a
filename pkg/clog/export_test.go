package clog

import (
	"io"
	"log/slog"
)

// Colours is the console handler as a terminal gets it.
func Colours(out io.Writer) slog.Handler { return newConsole(out, slog.LevelInfo, false, true) }

// Colourful reports whether the console format would write colours to out.
func Colourful(out io.Writer) bool { return colourful(out) }
