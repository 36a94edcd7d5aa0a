package filelock

import (
	"log/slog"
	"time"
)

var (
	JudgeMagic  = judgeMagic
	ParseEvents = parseEvents
)

// Create creates a file of a shared directory.
func Create(path, name string) error { return createShared(path, name, create) }

// CreateVisibly does so where there is no better way.
func CreateVisibly(path, name string) error { return createShared(path, name, createVisibly) }

func createShared(path, name string, create func(*directory, string) (int, error)) error {
	fd, err := openDir(path)
	if err != nil {
		return err
	}
	defer closeFile(fd)
	f, err := create(&directory{fd: fd, path: path, perm: sharedPerm}, name)
	if err == nil {
		closeFile(f)
	}
	return err
}

// Notified makes the Store try a queue only when it begins to wait, when it is notified, and after pauses up to a
// length. A lock that is released by closing its file needs short pauses: the kernel reports the close first.
func (s *Store) Notified(pauses time.Duration) *Store {
	s.signals = func(log *slog.Logger) signals { return onlySignals{newSignals(log), pauses} }
	return s
}

// onlySignals ends no longer pause.
type onlySignals struct {
	signals
	longest time.Duration
}

func (s onlySignals) wait(until time.Time) ([]int, bool) {
	if time.Until(until) > s.longest {
		until = until.Add(time.Hour)
	}
	return s.signals.wait(until)
}
