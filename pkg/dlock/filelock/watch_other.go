//go:build !linux

package filelock

import (
	"log/slog"
)

func newSignals(*slog.Logger) signals { return newPoller() }
