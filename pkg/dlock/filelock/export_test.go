package filelock

import (
	"log/slog"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

const (
	IdleQueues = idleQueues
	LastPoll   = lastPoll
	Magic      = magic
)

var (
	BaseOf    = baseOf
	KeyOf     = keyOf
	GuardName = guardName
	IsListed  = isListed
)

// Text returns the content of a lock file with this time and token.
func Text(since time.Time, fence int64) []byte {
	rec := record{since: since.UnixMicro(), fence: fence}
	return rec.appendTo(appendMark(nil, 0, 0))
}

// Marked reports whether a lock file tells its holder that a claim waits.
func Marked(text []byte) bool {
	rec, err := parse(text)
	return err == nil && rec.waited >= rec.since
}

// AsUser makes the Store behave as if it ran as another user.
func (s *Store) AsUser(uid int) *Store {
	s.uid = uid
	return s
}

// OnFS makes the Store behave as if its directory were on this file system.
func (s *Store) OnFS(name string, local bool) *Store {
	s.fstype = func(int) (string, bool, error) { return name, local, nil }
	return s
}

// Polling makes the Store work without watches.
func (s *Store) Polling() *Store {
	s.signals = func(*slog.Logger) signals { return newPoller() }
	return s
}

// Queues returns how many keys a driver knows.
func Queues(d driver.Driver) int {
	f := d.(*fileDriver)
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.queues)
}

// Waits reports whether a driver has a goroutine that waits.
func Waits(d driver.Driver) bool {
	f := d.(*fileDriver)
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.running
}

// Path returns the directory.
func (s *Store) Path() string { return s.path }

// ListAtATime lets List keep only n keys in memory.
func (s *Store) ListAtATime(n int) *Store {
	s.maxKeys = n
	return s
}
