// Package filelock keeps locks in files of one host: no server, no daemon.
//
// A lock is a file that is locked with flock(2), and the kernel frees it when its
// process dies, however it dies. The file holds the fencing token and says who has
// the lock. There is no lease: a TTL is accepted and means nothing, and a process
// that hangs keeps its locks. docs/backends/file.md has the layout, and says what
// files can promise and what they cannot.
package filelock

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// Errors of a directory that is not fit for locks. All are fatal to the call that
// meets them. Test with errors.Is.
var (
	// ErrNetworkFS: the directory is on a file system that other hosts may share,
	// where flock does not exclude them reliably. It is a driver.ErrUnsupported.
	ErrNetworkFS = fmt.Errorf("%w: a network file system", driver.ErrUnsupported)
	// ErrUnsafe: somebody else could tamper with the files.
	ErrUnsafe = errors.New("not safe for locks")
	// ErrNotALock: a file has the name of a lock and other content, which is left
	// alone.
	ErrNotALock = errors.New("the file is not a lock")
)

// A Store is a directory of locks. It is a driver.Opener: Clients that are opened
// on one directory exclude each other, in one process or in many. It needs no
// Close.
type Store struct {
	path    string
	shared  bool // WithSharedDir
	network bool // WithNetworkFS
	uid     int
	fstype  func(fd int) (name string, local bool, err error)
	signals func(*slog.Logger) signals
	bars    bars
	maxKeys int   // that List has in memory
	bad     error // what Open returns

	mu      sync.Mutex
	drivers map[*fileDriver]struct{} // that are open
}

// An Option changes what a Store accepts.
type Option func(*Store)

// WithSharedDir accepts a directory to which other users can write if it is sticky,
// as /run/lock is, and belongs to us or to root. Files are made writable for
// everybody, so any user can take any lock, and keep it.
//
// A directory that is missing is made by root alone, with mode 1777: others would refuse to
// use one that is another user's. For every other user a missing directory is an error.
func WithSharedDir() Option { return func(s *Store) { s.shared = true } }

// WithNetworkFS accepts any file system. It is up to you that flock works on it
// and that all contenders are on one host.
func WithNetworkFS() Option { return func(s *Store) { s.network = true } }

// maxListKeys bounds the memory of List. When it has looked at so many keys, it reads the
// directory again.
const maxListKeys = 16 << 10

// New returns a backend on a directory, which is made when the first lock is taken,
// for its owner alone (mode 0700); see WithSharedDir for one of all users.
func New(dir string, opts ...Option) *Store {
	s := &Store{
		path: dir, uid: os.Geteuid(), fstype: fsType, signals: newSignals, maxKeys: maxListKeys,
		drivers: map[*fileDriver]struct{}{},
	}
	for i, o := range opts {
		if o == nil {
			s.bad = fmt.Errorf("filelock: option %d is nil", i)
			continue
		}
		o(s)
	}
	return s
}

// Open does no I/O. Where there is no flock, as on Windows, the error is
// driver.ErrUnsupported.
func (s *Store) Open(o driver.Options) (driver.Driver, error) {
	path, err := s.where()
	if err != nil {
		return nil, err
	}
	d := &fileDriver{
		Outbox: driver.NewOutbox(1024), store: s, path: path, prefix: o.Prefix, log: o.Logger,
		lines: map[string]*line{}, armed: map[*line]struct{}{}, watched: map[int]*line{},
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drivers[d] = struct{}{}
	return d, nil
}

// where is the path of the directory, of a Store that can be used.
func (s *Store) where() (string, error) {
	switch {
	case !supported:
		return "", fmt.Errorf("%w: no flock on this system", driver.ErrUnsupported)
	case s.bad != nil:
		return "", s.bad
	case s.path == "":
		return "", errors.New("filelock: no directory")
	}
	return filepath.Abs(s.path)
}

// bars are IDs that must not be filed any more. They are kept in memory: whoever
// could still file one is in this process.
type bars struct {
	any atomic.Bool

	mu      sync.Mutex
	until   map[string]time.Time
	sweepAt int // size at which ended bars are dropped
}

func (b *bars) add(id string, ttl time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	if len(b.until) >= b.sweepAt {
		for id, end := range b.until {
			if end.Before(now) {
				delete(b.until, id)
			}
		}
		b.sweepAt = 2*len(b.until) + 64
	}
	if b.until == nil {
		b.until = map[string]time.Time{}
	}
	b.until[id] = now.Add(driver.BarFor(ttl))
	b.any.Store(true)
}

func (b *bars) has(id string) bool {
	if !b.any.Load() {
		return false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	end, ok := b.until[id]
	return ok && time.Now().Before(end)
}
