package filelock

import (
	"log/slog"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

const (
	IdleLines = idleLines
	LastPoll  = lastPoll
	Magic     = magic
)

var (
	BaseOf    = baseOf
	KeyOf     = keyOf
	GuardName = guardName
)

// Text is what a lock file says that has seen these times and numbers.
func Text(since time.Time, fence int64) []byte {
	rec := record{since: since.UnixMicro(), fence: fence}
	return rec.appendTo(appendMark(nil, 0, 0))
}

// Marked reports whether the holder of a lock file is told that somebody waits.
func Marked(text []byte) bool {
	rec, err := parse(text)
	return err == nil && rec.waited >= rec.since
}

// AsUser lets the Store think that it runs as another user.
func (s *Store) AsUser(uid int) *Store {
	s.uid = uid
	return s
}

// OnFS lets the Store think that its directory is on a file system.
func (s *Store) OnFS(name string, local bool) *Store {
	s.fstype = func(int) (string, bool, error) { return name, local, nil }
	return s
}

// Polling lets the Store do without watches.
func (s *Store) Polling() *Store {
	s.signals = func(*slog.Logger) signals { return newPoller() }
	return s
}

// Lines is how many keys a driver knows of.
func Lines(d driver.Driver) int {
	f := d.(*fileDriver)
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.lines)
}

// Waits reports whether a driver has a goroutine that waits.
func Waits(d driver.Driver) bool {
	f := d.(*fileDriver)
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.running
}

// Path is the directory.
func (s *Store) Path() string { return s.path }

// ListAtATime lets List have only n keys in memory.
func (s *Store) ListAtATime(n int) *Store {
	s.maxKeys = n
	return s
}
