package filelock

import (
	"log/slog"
	"time"
)

var (
	JudgeMagic  = judgeMagic
	ParseEvents = parseEvents
)

// CreateVisibly creates a file of a shared directory where there is no better way.
func CreateVisibly(path, name string) error {
	fd, err := openDir(path)
	if err != nil {
		return err
	}
	defer closeFile(fd)
	f, err := createVisibly(&directory{fd: fd, path: path, perm: sharedPerm}, name)
	if err == nil {
		closeFile(f)
	}
	return err
}

// Notified makes the Store try an idle queue only when it is notified.
func (s *Store) Notified() *Store {
	s.signals = func(log *slog.Logger) signals { return onlySignals{newSignals(log)} }
	return s
}

// onlySignals ends no pause, except the short ones that follow a notification.
type onlySignals struct{ signals }

func (s onlySignals) wait(until time.Time) ([]int, bool) {
	if time.Until(until) > 100*time.Millisecond {
		until = until.Add(time.Hour)
	}
	return s.signals.wait(until)
}
